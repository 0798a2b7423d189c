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
    training, sampling = config.training, config.sampling
    share = 1.0
    if isinstance(sampling, MixedSampling):
        share -= sampling.student_fraction
    elif isinstance(sampling, AdaptiveOffPolicySampling):
        share -= sampling.phi_start
    elif sampling.kind == "on_policy":
        share = 0.0
    return training.max_steps * training.batch_size * training.gradient_accumulation * share


def worth_keeping(config: DistillConfig, *, rows_to_read: int) -> bool:
    """Whether reading `rows_to_read` rows once, ahead of training, is no more work than reading each row whenever it
    comes up. What the teacher writes itself need not be read: its states are there already."""
    wish, visited = config.data.teacher_states, visits(config)
    if wish == "off" or not visited or not reads_teacher(config):
        return False
    return wish == "on" or visited >= rows_to_read
