"""`python -m worker.distill config.json out/`: a run without the service.

Knows a config file, an output folder and Ctrl-C. Writes every event to `out/events.jsonl`, the student to
`out/student`, checkpoints to `out/checkpoints` and the teacher's states to `out/teacher-states` until it is done, and
one line per step to the terminal.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from pydantic import ValidationError

from app.core.errors import Paused, StillhouseError
from app.core.events import Evaluated, Event, Resumed, StepDone, Warned
from app.core.folder_cache import FolderCache
from app.core.job_config import DistillConfig
from app.core.teacher_states import DEFAULT_LIMIT_GIB
from worker.distill.allocator import keep_few_kernels, keep_freed_memory
from worker.distill.disk import remove_folder
from worker.distill.event_log import EventLog
from worker.distill.trainer import distill
from worker.distill.types import ShouldStop


def line_of(event: Event) -> str | None:
    """The terminal's line for an event; None for events that only the log needs."""
    if isinstance(event, StepDone):
        losses = "  ".join(f"{k.removeprefix('loss/')} {v:.4f}" for k, v in event.metrics.items() if k[:5] == "loss/")
        return (
            f"step {event.step}/{event.max_steps}  {losses}  {event.tokens_per_s:.0f} tokens/s  "
            f"{event.eta_s:.0f} s left  ({event.source})"
        )
    if isinstance(event, Evaluated):
        return f"held out at step {event.step}: " + "  ".join(
            f"{k.removeprefix('eval/')} {v:.4f}" for k, v in event.metrics.items()
        )
    if isinstance(event, Resumed):
        return f"going on after step {event.step} of {event.phase}; --fresh starts anew"
    if isinstance(event, Warned):
        return f"warning ({event.code}): {event.message}"
    return None


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 done, 1 failed, 2 the config is not valid, 130 stopped by a signal with a checkpoint kept."""
    parser = argparse.ArgumentParser(
        prog="python -m worker.distill",
        description="Distill one student, no service. A run that was stopped goes on when it is called again.",
    )
    parser.add_argument("config", type=Path, help="JSON job description; data must be of kind 'file'")
    parser.add_argument("out", type=Path, help="folder for student, events and checkpoints")
    parser.add_argument("--states", type=Path, help="keep the teacher's states here, for other runs too")
    parser.add_argument("--fresh", action="store_true", help="start anew, and remove the checkpoints in OUT")
    args = parser.parse_args(arguments)
    try:
        config = DistillConfig.model_validate_json(args.config.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        print(error, file=sys.stderr)
        return 2
    if config.data.kind != "file":
        print("data.kind: without the service the data is a 'file' with a path", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoints = args.out / "checkpoints"
    if args.fresh:
        remove_folder(checkpoints)
    keep_freed_memory()
    keep_few_kernels()
    states = FolderCache(args.states or args.out / "teacher-states", limit_bytes=DEFAULT_LIMIT_GIB * 2**30)
    status = _run(config, args.out, checkpoints, states, _pause_on_signals())
    if status == 0:  # the student is there; what led to it is of no further use
        remove_folder(checkpoints)
        if args.states is None:
            remove_folder(states.folder)
    return status


def _pause_on_signals() -> ShouldStop:
    """The first SIGINT or SIGTERM pauses at the next step boundary; a second one ends the process at once."""
    asked = threading.Event()

    def on_signal(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        asked.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    return lambda: "pause" if asked.is_set() else None


def _run(config: DistillConfig, out: Path, checkpoints: Path, states: FolderCache, should_stop: ShouldStop) -> int:
    log = EventLog(out / "events.jsonl")

    def emit(event: Event) -> None:
        log(event)
        if line := line_of(event):
            print(line, flush=True)

    try:
        student = distill(config, out=out, emit=emit, should_stop=should_stop, checkpoints=checkpoints, states=states)
    except Paused as error:
        print(f"{error}; the same command goes on from there", file=sys.stderr)
        return 130
    except StillhouseError as error:
        print(f"{error.code}: {error}", file=sys.stderr)
        return 1
    finally:
        log.close()
    print(f"student with {student.parameters:,} parameters, of step {student.step}, in {student.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
