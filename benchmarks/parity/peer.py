"""TRL's published divergences on the same problems.

Knows TRL's functions and what they call things. Runs in the benchmark environment only, where TRL is installed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from trl.experimental.gkd import GKDTrainer
from trl.experimental.sdft.loss_utils import add_tail_bucket, compute_divergence
from trl.trainer.distillation_trainer import _chunked_divergence_loss

from benchmarks.parity.problem import HiddenProblem, Problem, Value


def generalized_jsd(problem: Problem, *, beta: float) -> Value:
    """`GKDTrainer.generalized_jsd_loss`: forward KL at beta 0, reverse KL at 1, else beta is the teacher's share."""
    student_BTV = problem.student_BTV.clone().requires_grad_()
    loss = GKDTrainer.generalized_jsd_loss(student_BTV, problem.teacher_BTV, labels=problem.labels_BT, beta=beta)
    return _value(loss, student_BTV)


def skew(problem: Problem, *, alpha: float, reverse: bool) -> Value:
    """TRL has no skewed divergence: its forward (reverse) KL, with the second argument a mixture of probabilities."""
    student_BTV = problem.student_BTV.clone().requires_grad_()
    student, teacher = student_BTV.softmax(-1), problem.teacher_BTV.softmax(-1)
    if reverse:
        mixture = (alpha * student + (1 - alpha) * teacher).log()
        loss = GKDTrainer.generalized_jsd_loss(student_BTV, mixture, labels=problem.labels_BT, beta=1)
    else:
        mixture = (alpha * teacher + (1 - alpha) * student).log()
        loss = GKDTrainer.generalized_jsd_loss(mixture, problem.teacher_BTV, labels=problem.labels_BT, beta=0)
    return _value(loss, student_BTV)


def top_k(problem: Problem, *, k: int) -> Value:
    """Forward KL on the teacher's k likeliest ids and TRL's tail bucket (its own trainers take the student's k)."""
    student_BTV = problem.student_BTV.clone().requires_grad_()
    teacher = problem.teacher_BTV.log_softmax(-1)
    ids = teacher.topk(k, dim=-1).indices
    of_student, of_teacher = (
        add_tail_bucket(log_probs.gather(-1, ids)) for log_probs in (student_BTV.log_softmax(-1), teacher)
    )
    return _value(compute_divergence(of_student, of_teacher, 0.0)[problem.mask_BT].mean(), student_BTV)


def chunked(problem: HiddenProblem, *, beta: float) -> Value:
    """`DistillationTrainer`'s loss over hidden states and heads, which never makes whole logits either."""
    student_BTD = problem.student_BTD.clone().requires_grad_()
    loss, _, _ = _chunked_divergence_loss(
        student_hidden_states=student_BTD,
        teacher_hidden_states=problem.teacher_BTD,
        student_lm_head_weight=problem.student_head_VD.clone().requires_grad_(),
        teacher_lm_head_weight=problem.teacher_head_VD,
        completion_mask=problem.mask_BT,
        beta=beta,
    )
    return _value(loss, student_BTD)


def _value(loss: Tensor, leaf: Tensor) -> Value:
    loss.backward()
    assert leaf.grad is not None
    assert math.isfinite(loss.item())
    return Value(loss.item(), torch.nan_to_num(leaf.grad))
