"""Every way to break a promise, planted into what an undisturbed job leaves, is found and named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.chaos.verdict import KINDS, Course, judge

STEPS = [("step", step, 0.5 / step) for step in (1, 2, 3)]
WHOLE = [("evaluated", 0, None), *STEPS, ("sample", 3, None)]
UNDISTURBED = Course(
    status="succeeded",
    numbers=[1, 2, 3, 4, 5, 6],
    attempts=[0, 1, 1, 1, 1, 1],
    runs=[WHOLE],
    curve=[(1, 0.5), (2, 0.25), (3, 0.125)],
    students=["abc"],
    successes=1,
)


def found(*, variants: dict[str, str] | None = None, **jobs: Course | None) -> dict[str, int]:
    variants = dict.fromkeys(jobs, "plain") if variants is None else variants
    findings = judge(jobs, variants=variants, references={"plain": UNDISTURBED})
    assert bool(findings.words) == bool(findings.counts.total())
    return {kind: findings.counts[kind] for kind in KINDS if findings.counts[kind]}


def test_nothing_is_found_in_what_an_undisturbed_job_leaves() -> None:
    resumed = replace(UNDISTURBED, attempts=[0, 1, 1, 2, 2, 3])
    assert found(a=UNDISTURBED, b=resumed) == {}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"runs": [[*WHOLE[:3], WHOLE[2], *WHOLE[3:]]]}, {"events_repeated": 1}),
        ({"runs": [[*WHOLE[:2], *WHOLE[3:]]]}, {"events_lost": 1}),
        ({"runs": [[]]}, {"events_lost": 5}),
        ({"runs": [[WHOLE[0], WHOLE[2], WHOLE[1], *WHOLE[3:]]]}, {"events_repeated": 1}),
        ({"runs": [[*WHOLE[:3], ("step", 3, 9.9), WHOLE[4]]]}, {"events_lost": 1, "events_repeated": 1}),
        ({"numbers": [1, 2, 4, 5, 6]}, {"events_lost": 1}),
        ({"numbers": [1, 2, 3, 3, 4, 5, 6]}, {"events_repeated": 1}),
        ({"students": ["abd"]}, {"not_identical": 1}),
        ({"students": []}, {"not_identical": 1}),
        ({"curve": [(1, 0.5), (3, 0.125)]}, {"not_identical": 1}),
        ({"curve": [(1, 0.5), (2, 0.25000001), (3, 0.125)]}, {"not_identical": 1}),
        ({"students": ["abc", "abc"]}, {"doubled": 1, "not_identical": 1}),
        ({"successes": 2}, {"doubled": 1}),
        ({"attempts": [0, 1, 2, 1, 2, 2]}, {"doubled": 1}),
        ({"status": "failed", "students": [], "successes": 0}, {"lost": 1}),
        ({"status": "running", "students": [], "successes": 0}, {"lost": 1}),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_each_broken_promise_is_found(changes: dict[str, Any], expected: dict[str, int]) -> None:
    assert found(a=replace(UNDISTURBED, **changes)) == expected


def test_a_cancelled_job_has_told_the_beginning() -> None:
    cancelled = replace(UNDISTURBED, status="cancelled", students=[], successes=0, runs=[WHOLE[:3]])
    assert found(a=cancelled) == {}
    assert found(a=replace(cancelled, runs=[[WHOLE[0], WHOLE[2]]])) == {"events_lost": 1, "events_repeated": 1}
    assert found(a=replace(cancelled, students=["abc"])) == {"doubled": 1}


def test_a_job_that_was_started_from_nothing_again_tells_all_of_it_again() -> None:
    assert found(a=replace(UNDISTURBED, runs=[WHOLE[:3], WHOLE])) == {}
    assert found(a=replace(UNDISTURBED, runs=[WHOLE[:3], WHOLE[3:]])) == {"events_lost": 3}


def test_a_job_that_is_gone_is_lost_and_one_that_nobody_submitted_is_double() -> None:
    assert found(a=None) == {"lost": 1}
    assert found(variants={"a": "plain"}) == {"lost": 1}
    assert found(variants={"a": "plain"}, a=UNDISTURBED, b=UNDISTURBED) == {"doubled": 1}
