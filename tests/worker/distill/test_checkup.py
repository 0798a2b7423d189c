"""What an evaluation reports for which settings, and that it changes nothing of the run around it."""

from __future__ import annotations

import copy
import random
import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.worker.distill.conftest import MakeConfig
from worker.distill.answers import Answered, answer_rows
from worker.distill.assembly import Assembly, assemble
from worker.distill.checkup import CheckUp, Examiner
from worker.distill.models import SplitModel

FORCED = {"eval/kl_ts", "eval/kl_st", "eval/top1_agreement", "eval/loss", "eval/loss/sft", "eval/loss/dac_kl"}
ANSWERS = {"eval/rouge_l", "eval/distinct_1", "eval/distinct_2", "eval/answer_tokens", "eval/ended"}
OWN = {"eval/kl_ts_samples", "eval/kl_st_samples", "eval/ex_acc_err", "eval/ex_acc_err_tokens"}


def assembled(make_config: MakeConfig, **evaluation: Any) -> Assembly:
    config = make_config(losses=[{"kind": "sft"}, {"kind": "dac_kl"}], evaluation={"rouge_rows": 4, **evaluation})
    return assemble(config, emit=lambda event: None, should_stop=lambda: False)


def examine(run: Assembly) -> CheckUp:
    return Examiner.of(run).examine(run.sampler.lm)


def at_temperature(temperature: str) -> set[str]:
    return {name.replace("eval/", f"eval/t{temperature}/") for name in ANSWERS}


def with_std(names: set[str]) -> set[str]:
    return names | {f"{name}_std" for name in names}


@pytest.mark.parametrize(
    ("evaluation", "expected"),
    [
        ({}, FORCED | ANSWERS),
        ({"rouge_rows": 0}, FORCED),
        ({"exact_match": True}, FORCED | ANSWERS | {"eval/exact_match"}),
        (
            {"temperatures": [0.3, 1], "seeds": 2},
            FORCED | ANSWERS | with_std(at_temperature("0.3") | at_temperature("1")),
        ),
        ({"own_samples": True, "seeds": 1}, FORCED | ANSWERS | OWN),
        (
            {"own_samples": True, "temperatures": [1.0], "seeds": 2},
            FORCED | ANSWERS | with_std(at_temperature("1") | OWN),
        ),
    ],
    ids=["as_it_is", "no_answers", "exact_match", "temperatures", "own_samples", "own_samples_at_temperatures"],
)
def test_what_is_measured_is_what_was_asked_for(
    make_config: MakeConfig, evaluation: dict[str, Any], expected: set[str]
) -> None:
    run = assembled(make_config, **evaluation)
    found = examine(run)
    assert set(found.metrics) == expected
    assert len(found.answers) == run.config.evaluation.rouge_rows
    assert examine(run) == found  # fixed seeds


def test_the_documentation_lists_every_measure_and_no_other(make_config: MakeConfig) -> None:
    run = assembled(make_config, own_samples=True, exact_match=True, temperatures=[0.3], seeds=1)
    measured = set(examine(run).metrics)
    lines = Path(__file__).parents[3].joinpath("docs/engine.md").read_text(encoding="utf-8").splitlines()
    table = list(takewhile(bool, lines[lines.index("| measure | what it is | when |") + 2 :]))
    patterns = [re.sub(r"<\w+>", ".+", line.split("`")[1]) for line in table]
    matches = {pattern: {name for name in measured if re.fullmatch(pattern, name)} for pattern in patterns}
    assert all(matches.values()), "a row that nothing is measured for"
    assert set().union(*matches.values()) == measured


def test_an_evaluation_changes_nothing_of_the_run(make_config: MakeConfig) -> None:
    run = assembled(make_config, own_samples=True, temperatures=[0.7], seeds=2)
    models = torch.nn.ModuleList([run.student.model, run.objective, run.teacher.model])
    before = copy.deepcopy(models.state_dict())
    modes = [module.training for module in models.modules()]
    states = torch.random.get_rng_state(), random.getstate(), np.random.get_state()
    examine(run)
    assert torch.equal(torch.random.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert str(np.random.get_state()) == str(states[2])
    assert all(torch.equal(value, before[name]) for name, value in models.state_dict().items())
    assert all(parameter.grad is None for parameter in models.parameters())
    assert [module.training for module in models.modules()] == modes


def test_the_teachers_samples_are_drawn_once_for_all_students(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = assembled(make_config, own_samples=True, seeds=2)
    examiner = Examiner.of(run)
    first, written_by = examiner.examine(run.sampler.lm), []

    def counted(lm: SplitModel, *args: Any, **kwargs: Any) -> list[Answered]:
        written_by.append(lm)
        return answer_rows(lm, *args, **kwargs)

    monkeypatch.setattr("worker.distill.checkup.answer_rows", counted)
    assert examiner.examine(run.sampler.lm) == first
    assert run.sampler.lm in written_by
    assert run.teacher not in written_by


def test_a_students_own_sharpness_does_not_shape_its_samples(make_config: MakeConfig) -> None:
    """Training may sample with a nucleus; measures never do, or a narrow nucleus would look like a good student."""
    runs = [
        assemble(
            make_config(
                sampling={"kind": "on_policy", "max_new_tokens": 10, "top_p": top_p, "temperature": temperature},
                losses=[{"kind": "forward_kl"}],
                evaluation={"own_samples": True, "temperatures": [1.0], "seeds": 1},
            ),
            emit=lambda event: None,
            should_stop=lambda: False,
        )
        for top_p, temperature in ((1.0, 1.0), (0.2, 0.5))
    ]
    wide, narrow = (examine(run).metrics for run in runs)
    assert wide == narrow
