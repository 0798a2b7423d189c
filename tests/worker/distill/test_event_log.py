"""The file has every training event once, in order, however often its writer was killed."""

from __future__ import annotations

import json
from pathlib import Path

from app.core.events import CheckpointSaved, Evaluated, Event, PhaseProgress, Resumed, Warned, parse_event
from worker.distill.event_log import EventLog

LOADING = PhaseProgress(phase="loading")


def told(*steps: int) -> list[Event]:
    return [Evaluated(step=step, metrics={}) for step in steps]


def write(path: Path, *events: Event) -> list[Event]:
    """One attempt: what the file has after it."""
    log = EventLog(path)
    for event in events:
        log(event)
    log.close()
    return [parse_event(json.loads(line)) for line in path.read_text().splitlines()]


def test_an_attempt_that_goes_on_cuts_what_it_tells_again(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    saved = CheckpointSaved(step=2, bytes=1, best=False)
    assert write(path, LOADING, *told(1, 2), saved, *told(3)) == [LOADING, *told(1, 2), saved, *told(3)]
    resumed = Resumed(step=2, training_events=2)
    assert write(path, LOADING, resumed, *told(3, 4)) == [
        *[LOADING, *told(1, 2), saved],
        *[LOADING, resumed, *told(3, 4)],
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]


def test_an_attempt_that_starts_anew_cuts_all(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, LOADING, *told(1, 2))
    skipped = Warned(code="checkpoint_skipped", message="torn")
    assert write(path, skipped, LOADING, *told(1)) == [skipped, LOADING, *told(1)]


def test_what_is_told_before_an_attempt_knows_is_there_at_once_and_stays_when_it_dies(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, *told(1, 2))
    assert write(path, LOADING) == [*told(1, 2), LOADING]
    with path.open("a") as file:
        file.write('{"kind": "eval')
    resumed = Resumed(step=2, training_events=2)
    assert write(path, LOADING, resumed, *told(3)) == [*told(1, 2), LOADING, LOADING, resumed, *told(3)]
