"""`python -m worker.distill config.json out/`: a run without the service.

Knows a config file, an output folder and Ctrl-C. Writes every event to `out/events.jsonl`, the student to
`out/student`, and one line per step to the terminal.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from pydantic import ValidationError

from app.core.errors import Cancelled, StillhouseError
from app.core.events import Emit, Evaluated, Event, StepDone, Warned
from app.core.job_config import DistillConfig
from worker.distill.trainer import distill


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
    if isinstance(event, Warned):
        return f"warning ({event.code}): {event.message}"
    return None


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 done, 1 failed, 2 the config is not valid, 130 stopped by a signal."""
    parser = argparse.ArgumentParser(prog="python -m worker.distill", description="Distill one student, no service.")
    parser.add_argument("config", type=Path, help="JSON job description; data must be of kind 'file'")
    parser.add_argument("out", type=Path)
    args = parser.parse_args(arguments)
    try:
        config = DistillConfig.model_validate_json(args.config.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        print(error, file=sys.stderr)
        return 2
    if config.data.kind != "file":
        print("data.kind: without the service the data is a 'file' with a path", file=sys.stderr)
        return 2
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "events.jsonl").open("w", encoding="utf-8", buffering=1) as log:

        def emit(event: Event) -> None:
            log.write(event.model_dump_json() + "\n")
            if line := line_of(event):
                print(line, flush=True)

        return _run(config, args.out, emit, stop)


def _run(config: DistillConfig, out: Path, emit: Emit, stop: threading.Event) -> int:
    try:
        student = distill(config, out=out, emit=emit, should_stop=lambda: "cancel" if stop.is_set() else None)
    except Cancelled as error:
        print(error, file=sys.stderr)
        return 130
    except StillhouseError as error:
        print(f"{error.code}: {error}", file=sys.stderr)
        return 1
    print(f"student with {student.parameters:,} parameters in {student.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
