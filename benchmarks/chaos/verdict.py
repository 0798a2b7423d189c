"""Whether a run kept the promises: what each job left, held against what an undisturbed one leaves.

Knows what counts as lost, doubled, different or left behind. Does not know how it is found out (`evidence.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# What a training event says of its course: kind, step and, of a step, its total loss to the last bit.
Said = tuple[str, int, float | None]
KINDS = ("lost", "doubled", "not_identical", "events_lost", "events_repeated", "orphans")


@dataclass(frozen=True, kw_only=True)
class Course:
    """What one job left. `runs`: its training events, cut wherever it was started from nothing again. `curve`: the
    stored points of its total loss. `students`: the digests of the students that name it."""

    status: str
    numbers: Sequence[int]
    attempts: Sequence[int]
    runs: Sequence[Sequence[Said]]
    curve: Sequence[tuple[int, float]]
    students: Sequence[str]
    successes: int


@dataclass(frozen=True)
class Findings:
    """How often each promise was broken, and in which words a person would say it."""

    counts: Counter[str] = field(default_factory=Counter)
    words: list[str] = field(default_factory=list)

    def add(self, kind: str, count: int, what: str) -> None:
        if count:
            self.counts[kind] += count
            self.words.append(f"{kind}: {what}")

    def add_each(self, kind: str, whats: Iterable[str]) -> None:
        for what in whats:
            self.add(kind, 1, what)


def judge(
    courses: Mapping[str, Course | None], *, variants: Mapping[str, str], references: Mapping[str, Course]
) -> Findings:
    """`courses` by job id, None for a job that is gone; `variants` says which reference each accepted job has."""
    findings = Findings()
    for job_id in courses.keys() - variants.keys():
        findings.add("doubled", 1, f"nobody submitted {job_id}")
    for job_id, variant in variants.items():
        course = courses.get(job_id)
        if course is None:
            findings.add("lost", 1, f"{job_id} was accepted and is not there")
            continue
        _judge_ending(findings, job_id, course, references[variant])
        _judge_events(findings, job_id, course, references[variant])
    return findings


def _judge_ending(findings: Findings, job_id: str, course: Course, reference: Course) -> None:
    if course.status not in ("succeeded", "cancelled"):
        findings.add("lost", 1, f"{job_id} is {course.status}")
    expected = 1 if course.status == "succeeded" else 0
    findings.add("doubled", max(0, len(course.students) - expected), f"{job_id} has {len(course.students)} students")
    findings.add("doubled", max(0, course.successes - expected), f"{job_id} succeeded {course.successes} times")
    backwards = sum(later < earlier for earlier, later in zip(course.attempts, course.attempts[1:], strict=False))
    findings.add("doubled", backwards, f"{job_id}: an attempt wrote after a later one had begun")
    if course.status == "succeeded":
        differs = list(course.students) != list(reference.students)
        findings.add("not_identical", differs, f"{job_id}'s student is {course.students}, not {reference.students}")
        differs = not differs and list(course.curve) != list(reference.curve)
        findings.add("not_identical", differs, f"{job_id}'s curve is not that of an undisturbed run")


def _judge_events(findings: Findings, job_id: str, course: Course, reference: Course) -> None:
    """Numbers without a hole, and the undisturbed run's training events, each once, in its order."""
    numbers, expected = Counter(course.numbers), Counter(range(1, max(course.numbers, default=0) + 1))
    findings.add("events_lost", (expected - numbers).total(), f"{job_id}: no events {_some(expected - numbers)}")
    findings.add("events_repeated", (numbers - expected).total(), f"{job_id}: twice {_some(numbers - expected)}")
    whole = reference.runs[0]
    for i, said in enumerate(course.runs):
        is_last = i == len(course.runs) - 1
        wanted = whole if is_last and course.status == "succeeded" else whole[: len(said)]
        missing, extra = Counter(wanted) - Counter(said), Counter(said) - Counter(wanted)
        findings.add("events_lost", missing.total(), f"{job_id}: not told {_some(missing)}")
        findings.add("events_repeated", extra.total(), f"{job_id}: told too much {_some(extra)}")
        if not missing and not extra and list(said) != list(wanted):
            findings.add("events_repeated", 1, f"{job_id}: told in another order")


def _some(things: Iterable[object]) -> str:
    """The first few, as words."""
    listed = [str(thing) for thing in things]
    return ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")
