"""How far a student is from its teacher on its own samples, and how much of that comes from writing by itself.

Knows both models and sampled responses. Does not know references: the teacher alone says what is right here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from worker.distill.answers import Answered
from worker.distill.evaluate import PositionDivergence, position_divergence, response_states
from worker.distill.models import SplitModel
from worker.distill.types import TokenSequence, make_batch


def own_sample_metrics(
    teacher: SplitModel,
    student: SplitModel,
    *,
    student_samples: Sequence[Answered],
    teacher_samples: Sequence[Answered],
    batch_size: int,
    pad_id: int,
) -> dict[str, float]:
    """`eval/kl_ts_samples`, `eval/kl_st_samples`, `eval/ex_acc_err` and the length it is taken over.

    The first two are KL(teacher || student) and KL(student || teacher), nats per token of the student's own samples.
    `eval/ex_acc_err` is `excess_accumulated_error`, absent where the models are equal; `eval/ex_acc_err_tokens` is its
    l. Both lists hold at least one sample, drawn at temperature 1 from whole distributions for the same prompts.
    """
    own = _divergence(teacher, student, student_samples, batch_size=batch_size, pad_id=pad_id)
    oracle = _divergence(teacher, student, teacher_samples, batch_size=batch_size, pad_id=pad_id)
    metrics = {
        "eval/kl_ts_samples": float(own.kl_ts_N.double().mean()),
        "eval/kl_st_samples": float(own.kl_st_N.double().mean()),
    }
    own_rows = own.kl_ts_N.split([len(sample.response_ids) for sample in student_samples])
    oracle_rows = oracle.kl_ts_N.split([len(sample.response_ids) for sample in teacher_samples])
    steps = common_length(own_rows, oracle_rows)
    excess = excess_accumulated_error(own_rows, oracle_rows, steps=steps)
    if excess is not None:
        metrics |= {"eval/ex_acc_err": excess, "eval/ex_acc_err_tokens": float(steps)}
    return metrics


def common_length(own: Sequence[Tensor], oracle: Sequence[Tensor]) -> int:
    """The last step that at least half of the samples of each kind reach, so that no step's mean rests on a few."""
    return min(sorted(map(len, rows), reverse=True)[(len(rows) - 1) // 2] for rows in (own, oracle))


def excess_accumulated_error(own: Sequence[Tensor], oracle: Sequence[Tensor], *, steps: int) -> float | None:
    """ExAccErr of Arora et al., 2022 (arXiv 2204.01171), as a share: 0.25 is their 25 %. None where it is 0 / 0.

        R(l)        = sum over t <= l of  E[ KL(p_t || q_t) ],  prefixes written by the student
        l * eps(l)  = sum over t <= l of  E[ KL(p_t || q_t) ],  prefixes written by the teacher
        ExAccErr(l) = (R(l) - l * eps(l)) / (l * eps(l))

    with p_t the oracle's and q_t the model's next-token distribution. l times the error per step is what a model
    without exposure bias would accumulate; what it accumulates beyond that comes from prefixes of its own making.

    [ours] The oracle is the teacher (as in MiniLLM, arXiv 2306.08543). The expectation over the next token is exact,
    the one over prefixes is the mean over the samples that reach step t, one tensor [T] of KL per sample. Samples are
    paired by prompt only. With few of them the value is noisy: give several seeds.
    """
    accumulated, expected = (
        sum(float(torch.stack([kl_T[t] for kl_T in rows if len(kl_T) > t]).double().mean()) for t in range(steps))
        for rows in (own, oracle)
    )
    return (accumulated - expected) / expected if expected > 0 else None


@torch.no_grad()
def _divergence(
    teacher: SplitModel, student: SplitModel, samples: Sequence[Answered], *, batch_size: int, pad_id: int
) -> PositionDivergence:
    """Both models along `samples`, whose positions follow each other in order."""
    parts: list[PositionDivergence] = []
    for start in range(0, len(samples), batch_size):
        sequences = [
            TokenSequence(sample.row.prompt_ids, sample.response_ids, is_ground_truth=False)
            for sample in samples[start : start + batch_size]
        ]
        batch = make_batch(sequences, pad_id=pad_id, device=teacher.device)
        states = [response_states(lm, batch) for lm in (teacher, student)]
        parts.append(position_divergence(teacher, student, *states))
    return PositionDivergence(
        torch.cat([part.kl_ts_N for part in parts]),
        torch.cat([part.kl_st_N for part in parts]),
        torch.cat([part.agrees_N for part in parts]),
    )
