"""Every training row of the table at toy size: counts of passes and tokens, and the width of logits. Counts cannot
flake; a second prefill, a second reading or a whole [B, T, V] changes them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from app.core.folder_cache import FolderCache
from app.core.job_config import DistillConfig
from benchmarks.speed.models import Work
from benchmarks.speed.rows import FORWARD_KL, MGSR, ON_POLICY, our_config, start_rows
from tests.benchmarks.speed.watching import Widest, passes
from tests.tiny_models import SPECIAL, make_tiny_model
from worker.distill import assembly, read_along, row_choice, scrg
from worker.distill.assembly import Assembly, assemble
from worker.distill.step import Stepper

VOCABULARY, WIDTH = 320, 32
NEW, BATCH = 20, 4
POSITIONS = 6  # of one slice
ALL_NEW = BATCH * (NEW - 1)  # tokens that are read to predict the next: all but the last of each response


def _sure(folder: Path, *, turned: int) -> Path:
    """Makes a tiny model certain of what it says, which is never a special token: their logits are 0, the largest are
    far above. `turned` renames its words, so that two models with the same weights never say the same."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.lm_head.weight *= 20
        model.lm_head.weight[: len(SPECIAL)] = 0
        words_VD = model.lm_head.weight[len(SPECIAL) :]
        words_VD.copy_(words_VD.roll(turned, 0))
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """As the benchmark has it: every prompt and every response has its exact length."""
    folder = tmp_path_factory.mktemp("toy-speed")
    teacher, student = (
        _sure(make_tiny_model(folder / name, tie_word_embeddings=False), turned=turned)
        for name, turned in (("teacher", 0), ("student", 1))
    )
    rows = [  # digits: the toy tokenizer makes one token of each
        {"messages": [{"role": "user", "content": f"{i:02d}" * 12}], "response": f"{i:02d}" * (NEW // 2)}
        for i in range(24)
    ]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return Work(str(teacher), str(student), str(path), [], [], NEW)


def toy(
    work: Work,
    *,
    terms: Any = MGSR,
    sampling: Any = ON_POLICY,
    rounds: int = 1,
    scrg: Any = None,
    states: FolderCache | None = None,
) -> Assembly:
    raw = our_config(work, terms=terms, sampling=sampling, rounds=rounds, batch=BATCH)
    raw["training"]["precision"] = "float32"
    raw["scrg"] |= scrg or {}
    config = DistillConfig.model_validate(raw)
    return assemble(config, emit=lambda event: None, should_stop=lambda: None, states=states)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of a few positions wherever there are slices."""
    monkeypatch.setitem(assembly.LOGITS_PER_CHUNK, "cpu", POSITIONS * VOCABULARY)
    monkeypatch.setattr(read_along, "SCORED_LOGITS", POSITIONS * VOCABULARY)
    score = getattr(scrg.score, "__wrapped__", scrg.score)
    monkeypatch.setitem(score.__kwdefaults__, "max_logits", POSITIONS * VOCABULARY)


def steps(run: Assembly, source: str, count: int, patch: pytest.MonkeyPatch) -> list[tuple[Counter[str], int]]:
    """(passes and tokens, rows of the widest logits) of `count` steps that train on `source`, in the middle of a run,
    where the schedule has every source."""
    stepper, found = Stepper(run), []
    middle = run.config.training.max_steps // 2
    for step in range(middle, middle + 60):
        with passes(run, patch) as counts, Widest(VOCABULARY, width=WIDTH) as widest:
            (drawn,) = stepper.take(step).window
        if drawn.source == source:
            assert drawn.batch.num_positions == BATCH * NEW
            found.append((counts, widest.rows))
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} steps on {source}")


def prompts(run: Assembly) -> int:
    """Tokens of a batch's prompts, which all have the same length."""
    (length,) = {len(row.prompt_ids) for row in run.train_rows}
    return BATCH * length


def trained(run: Assembly) -> dict[str, int]:
    """The student trains on prompts and responses in one pass of its own."""
    return {"student passes": 1, "student tokens": prompts(run) + BATCH * NEW}


def written(run: Assembly) -> dict[str, int]:
    """Sampling is one prefill and then a pass per token."""
    return {"writer passes": NEW, "writer tokens": prompts(run) + ALL_NEW}


def test_plain_on_policy_forward_kl(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """The teacher reads each sample once; the loss needs no pass of it."""
    run = toy(work, terms=FORWARD_KL, rounds=0)
    for counts, widest in steps(run, "fresh", 3, monkeypatch):
        assert counts == {
            **trained(run),
            **written(run),
            "reader passes": 1,
            "reader tokens": prompts(run) + ALL_NEW,
        }
        assert 0 < widest <= POSITIONS + 1


@pytest.mark.parametrize("rounds", [1, 3])
def test_mgsr_on_fresh_samples(work: Work, monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """Two models that are certain of different things: the first tokens are corrected, none is written in vain, and
    the teacher reads the prompts, one token behind each correction but the last, and the rest at once."""
    run = toy(work, rounds=rounds)
    for counts, widest in steps(run, "fresh", 3, monkeypatch):
        reading = {"reader passes": 1 + rounds, "reader tokens": prompts(run) + ALL_NEW}
        assert counts == {**trained(run), **written(run), **reading}
        assert 0 < widest <= POSITIONS + 1


def test_mgsr_with_a_correction_of_whole_samples(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second, shorter pass of both over what is new, and no second prefill."""
    run = toy(work, scrg={"position": "largest_kl", "teacher_token": "sample"})
    for counts, widest in steps(run, "fresh", 3, monkeypatch):
        new = counts["writer tokens"] - prompts(run) - ALL_NEW
        assert 0 < new <= ALL_NEW
        assert counts["reader tokens"] == prompts(run) + ALL_NEW + new
        assert counts["reader passes"] == 2
        assert counts["writer passes"] <= NEW + NEW - 1
        assert 0 < widest <= POSITIONS + 1
        assert {name: counts[name] for name in trained(run)} == trained(run)


@pytest.mark.parametrize("source", ["replay", "ground_truth"])
def test_mgsr_on_sequences_that_are_there(work: Work, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """One pass of each model, and nothing is sampled."""
    sampling = {"kind": "adaptive_off_policy", "phi_start": 0.7, "buffer_size": 8}
    run = toy(work, sampling=sampling, rounds=3)
    for counts, widest in steps(run, source, 2, monkeypatch):
        assert counts == {**trained(run), "reader passes": 1, "reader tokens": prompts(run) + BATCH * NEW}
        assert 0 < widest <= POSITIONS + 1


@pytest.mark.parametrize("source", ["fresh", "ground_truth"])
def test_rows_to_choose_from(work: Work, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str) -> None:
    """One more pass of the student, a lean one, over all that are looked at; the teacher, whose states are kept, reads
    none."""
    monkeypatch.setattr(row_choice, "SCORED_LOGITS", POSITIONS * VOCABULARY)
    sampling = {"kind": "mixed", "student_fraction": 0.5, "candidates": 2, "batches_per_generation": 1}
    run = toy(work, sampling=sampling, rounds=1, states=FolderCache(tmp_path, limit_bytes=2**20))
    whole = prompts(run) + BATCH * NEW
    for counts, widest in steps(run, source, 2, monkeypatch):
        reading = {"reader passes": 2, "reader tokens": prompts(run) + ALL_NEW}
        sampled = {**written(run), **reading} if source == "fresh" else {}
        look = {"writer passes": 1, "writer tokens": 2 * whole}
        assert counts == Counter(trained(run)) + Counter(sampled) + Counter(look)
        assert 0 < widest <= POSITIONS + 1


def test_accumulated_micro_batches_cost_what_each_costs(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = our_config(work, terms=MGSR, sampling=ON_POLICY, rounds=1, batch=BATCH)
    raw["training"] |= {"precision": "float32", "gradient_accumulation": 2}
    run = assemble(DistillConfig.model_validate(raw), emit=lambda event: None, should_stop=lambda: None)
    stepper = Stepper(run)
    with passes(run, monkeypatch) as counts:
        stepper.take(1)
    assert counts["writer passes"] == 2 * NEW
    assert counts["student passes"] == 2
    assert counts["teacher passes"] == 0


def test_batches_that_are_drawn_together_cost_the_passes_of_one(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tokens as in two generations, in half the passes; the second step reads and writes nothing."""
    run = toy(work, sampling={"kind": "on_policy", "batches_per_generation": 2})
    stepper = Stepper(run)
    with passes(run, monkeypatch) as first:
        stepper.take(1)
    with passes(run, monkeypatch) as second:
        stepper.take(2)
    tokens = 2 * (prompts(run) + ALL_NEW)
    drawing = {"writer passes": NEW, "writer tokens": tokens, "reader passes": 2, "reader tokens": tokens}
    assert first == {**trained(run), **drawing}
    assert second == trained(run)


def test_the_start_is_told_by_phases() -> None:
    rows = start_rows({"loading": 0.0, "started": 2.0, "training": 2.5})
    assert [row.ours for row in rows] == [2.5, 2.0, 0.5]
