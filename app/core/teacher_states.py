"""Whether a run keeps its teacher's states of the rows in its data, and what they take.

Knows a job description and counts of rows and tokens. Does not know models, files or how states are kept.
"""

from __future__ import annotations

from app.core.job_config import AdaptiveOffPolicySampling, DistillConfig, MixedSampling
from app.core.loss_config import SftLoss

DEFAULT_LIMIT_GIB = 20


def reads_teacher(config: DistillConfig) -> bool:
    """Whether any loss compares with the teacher."""
    return not all(isinstance(loss, SftLoss) for loss in config.losses)


def visits(config: DistillConfig) -> float:
    """How many rows of the data all steps train on, each visit counted. phi, which may rise, is taken as it starts."""
    return _sequences(config) * _data_share(config)


def looks(config: DistillConfig) -> float:
    """How many rows of the data are looked at in all steps to choose between them: before a batch from the data, and
    before a sampled one unless prompts lack a response (`data.responses`: student), where samples are compared."""
    candidates = config.sampling.candidates
    if candidates == 1:
        return 0.0
    share = _data_share(config) + (0.0 if config.data.responses == "student" else sampled_share(config))
    return _sequences(config) * share * candidates


def sampled_share(config: DistillConfig) -> float:
    """Of all batches, those that the student writes. phi is taken to reach a half, and replay to give one of two."""
    sampling = config.sampling
    if sampling.kind == "ground_truth":
        return 0.0
    if isinstance(sampling, MixedSampling):
        return sampling.student_fraction
    if isinstance(sampling, AdaptiveOffPolicySampling):
        return (sampling.phi_start + max(sampling.phi_start, 0.5)) / 4
    return 1.0


def worth_keeping(config: DistillConfig, *, rows_to_read: int) -> bool:
    """Whether reading `rows_to_read` rows once, ahead of training, is no more work than reading each row whenever it
    comes up. What the teacher writes itself need not be read: its states are there already."""
    wish, readings = config.data.teacher_states, visits(config) + looks(config)
    if wish == "off" or not readings or not reads_teacher(config):
        return False
    return wish == "on" or readings >= rows_to_read


def _sequences(config: DistillConfig) -> int:
    training = config.training
    return training.max_steps * training.batch_size * training.gradient_accumulation


def _data_share(config: DistillConfig) -> float:
    sampling = config.sampling
    if isinstance(sampling, MixedSampling):
        return 1.0 - sampling.student_fraction
    if isinstance(sampling, AdaptiveOffPolicySampling):
        return 1.0 - sampling.phi_start
    return 0.0 if sampling.kind == "on_policy" else 1.0
