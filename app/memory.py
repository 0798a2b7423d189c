"""An estimate of a training run's peak memory, from sizes alone.

Knows a formula. Does not know devices: allocator slack and the runtime's own memory (about a GiB on CUDA) come on top.
With N parameters, L layers, H hidden size, K key width, V vocabulary, B batch size, T tokens per sequence (longest
prompt and response, at most the context) and w bytes per number (4, or 2 in bfloat16, which `auto` is taken for):

    weights      w N_teacher + 4 N_student (float32 master) + 2 N_student for the sampling copy in bfloat16
    gradients    4 N_student
    optimizer    8 N_student                      AdamW's two moments in float32
    caches       2 w G B T (L K of teacher + L K of student), when sequences are sampled, G batches at once, or as many
                 as are tried for one where prompts have no response to be compared on
    activations  17 w B T H L of the student      Korthikanti et al. 2022, Eq. 2, without stored attention scores
                 + 6 * 4 * B T V                  student and teacher logits, log-probabilities, a gradient; `chunked`
                                                  slices hold at most 2**25 logits at once
"""

from __future__ import annotations

from app.core.job_config import DistillConfig, GroundTruthSampling
from app.core.model_facts import ModelFacts

_CHUNK_LOGITS = 2**25
_LOGIT_TENSORS = 6


def estimate_bytes(config: DistillConfig, *, teacher: ModelFacts, student: ModelFacts) -> dict[str, int]:
    """Bytes by part and their `total`; see the module's formula."""
    width = 4 if config.training.precision == "float32" else 2
    tokens = config.data.max_prompt_tokens + max(config.data.max_response_tokens, config.sampling.max_new_tokens)
    positions = config.training.batch_size * min(tokens, teacher.context or tokens, student.context or tokens)
    together = _batches_sampled_together(config)
    logits = positions * teacher.vocabulary_size
    if config.training.logits == "chunked":
        logits = min(logits, _CHUNK_LOGITS)
    kept_per_token = sum(facts.layers * facts.kv_width for facts in (teacher, student))
    copy = 2 * student.parameters if width == 2 else 0
    parts = {
        "weights": width * teacher.parameters + 4 * student.parameters + copy,
        "gradients": 4 * student.parameters,
        "optimizer": 8 * student.parameters,
        "caches": 2 * width * together * positions * kept_per_token,
        "activations": 17 * width * positions * student.hidden_size * student.layers + 4 * _LOGIT_TENSORS * logits,
    }
    return {**parts, "total": sum(parts.values())}


def _batches_sampled_together(config: DistillConfig) -> int:
    if isinstance(config.sampling, GroundTruthSampling):
        return 0
    tried = config.sampling.candidates if config.data.responses == "student" else 1
    return max(config.sampling.batches_per_generation, tried)
