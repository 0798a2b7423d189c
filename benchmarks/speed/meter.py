"""One engine in a process of its own that runs a training step when it is told to, and says what the step cost.

Knows processor time, what torch allocated, and a pipe. Does not know engines: they call `boundary` between steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import accumulate
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity, profile

Order = Literal["time", "memory", "stop"]
Engine = Callable[[Any, "Meter"], None]


@dataclass(frozen=True)
class Cost:
    """One step: processor seconds of the whole process (elapsed seconds on a GPU), response tokens trained on, the
    peak of what was allocated above the step's start (None unless asked for), and what the engine says of it."""

    seconds: float
    tokens: int
    peak_mib: float | None
    notes: dict[str, Any]


def peak_of(profiled: profile) -> float:
    """The most MiB that were alive at once, above what was alive when the profiler started."""
    results = profiled.profiler
    assert results is not None
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in events), initial=0)) / 2**20


class Meter:
    """The engine's side of the pipe: a step runs between two calls of `boundary`, which returns False to end."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._profile: profile | None = None
        self._running = False
        self._cuda = torch.cuda.is_available()
        self._start = 0.0

    def boundary(self, tokens: int = 0, **notes: Any) -> bool:
        """Reports the step that just ended, if one was running, and waits for the next order."""
        if self._running:
            self._pipe.send(asdict(Cost(self._now() - self._start, tokens, self._peak(), notes)))
        else:
            self._pipe.send({"ready": True, **notes})
        order: Order = self._pipe.recv()
        self._running = order != "stop"
        if order == "memory":
            if self._cuda:
                torch.cuda.reset_peak_memory_stats()
                self._before = torch.cuda.memory_allocated()
            self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            self._profile.__enter__()
        self._start = self._now()
        return self._running

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.process_time()

    def _peak(self) -> float | None:
        if self._profile is None:
            return None
        self._profile.__exit__(None, None, None)
        finished, self._profile = self._profile, None
        if self._cuda:
            return (torch.cuda.max_memory_allocated() - self._before) / 2**20
        return peak_of(finished)


def _serve(engine: Engine, spec: Any, pipe: Connection, threads: int) -> None:
    torch.set_num_threads(threads)
    engine(spec, Meter(pipe))


class Arm:
    """This side of the pipe: one engine, loaded once and then asked for steps."""

    def __init__(self, engine: Engine, spec: Any, *, threads: int = 1) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(engine, spec, theirs, threads))
        self._process.start()
        theirs.close()
        try:
            self.ready: dict[str, Any] = self._pipe.recv()
        except EOFError:  # the engine ended before it was ready
            self._process.join()
            raise

    def step(self, order: Order = "time") -> Cost:
        self._pipe.send(order)
        return Cost(**self._pipe.recv())

    def __enter__(self) -> Arm:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Lets the engine end; one that does not is ended."""
        if self._process.is_alive():
            self._pipe.send("stop")
            self._process.join(60)
        if self._process.is_alive():
            self._process.terminate()
