"""Our engine as an arm of the benchmark: `distill` itself, held at every step boundary.

Knows the public entry and its events. Does not reach into the trainer: what is measured is what users run.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from app.core.errors import Cancelled
from app.core.events import Event, PhaseProgress, RunStarted, StepDone
from app.core.folder_cache import FolderCache
from app.core.job_config import DistillConfig
from worker.distill.allocator import keep_few_kernels, keep_freed_memory
from worker.distill.trainer import distill


class _Held:
    """`should_stop` and `emit` of a run that takes one step at a time."""

    def __init__(self, meter: Any) -> None:
        self._meter = meter
        self._training = False
        self._last: StepDone | None = None
        self._began = time.process_time()
        self._phases: dict[str, float] = {}

    def emit(self, event: Event) -> None:
        if isinstance(event, PhaseProgress | RunStarted):
            name = event.phase if isinstance(event, PhaseProgress) else "started"
            self._phases.setdefault(name, time.process_time() - self._began)
            self._training = name == "training"
        elif isinstance(event, StepDone):
            self._last = event

    def should_stop(self) -> Any:
        """Falsy to go on, "cancel" to end: what the library asks at each step boundary (and while it loads)."""
        if not self._training:
            return None
        done, self._last = self._last, None
        if done is None:
            return None if self._meter.boundary(phases=self._phases) else "cancel"
        times = {key: value for key, value in done.metrics.items() if key.startswith("time/")}
        return None if self._meter.boundary(done.tokens, source=done.source, times=times) else "cancel"


def run(raw_config: dict[str, Any], meter: Any) -> None:
    """An engine for `Arm`: trains as `raw_config` (a DistillConfig as JSON) says, one step per order."""
    keep_freed_memory()  # as both programs that train do
    keep_few_kernels()
    held = _Held(meter)
    with tempfile.TemporaryDirectory() as folder:
        try:
            distill(
                DistillConfig.model_validate(raw_config),
                out=Path(folder),
                emit=held.emit,
                should_stop=held.should_stop,
                states=FolderCache(Path(folder) / "states", limit_bytes=2**30),
            )
        except Cancelled:
            return
