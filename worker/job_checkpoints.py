"""Where one attempt of a job keeps its checkpoints, and how it takes over those of the attempt before.

Knows the artifact store and folders of attempts. Does not know what a checkpoint is made of, nor when one is written.

Each attempt has a folder of its own, `checkpoints/{job}/{attempt}`: taking over renames the folder of the attempt
before. So a process that was only thought dead and wakes up again writes into a folder that nobody reads.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import structlog

from app.core.db.jobs import checkpoints_key
from app.core.events import CheckpointSaved, Emit, Event
from app.core.storage import ArtifactStore

log = structlog.stdlib.get_logger(__name__)


class JobCheckpoints:
    """The checkpoints of attempt `attempt`. In a store that is no local folder they are copies of those in `scratch`,
    which is this attempt's own."""

    def __init__(self, store: ArtifactStore, *, job_id: str, attempt: int, scratch: Path) -> None:
        self._store = store
        self._job = checkpoints_key(job_id)
        self._key = f"{self._job}/{attempt}"
        self._attempt = attempt
        self._local = store.local_folder(self._job)
        self.folder = scratch if self._local is None else self._local / str(attempt)

    def take_over(self, *, training_events: int) -> None:
        """Makes `folder` what the newest attempt before this one left, but for checkpoints that are ahead of the
        `training_events` stored events: going on from there would leave a hole in what is told."""
        earlier = self._earlier_attempts()
        if earlier:
            self._fetch(earlier[-1])
        self.folder.mkdir(parents=True, exist_ok=True)
        for attempt in earlier[:-1]:
            self._store.delete(f"{self._job}/{attempt}")
        self._drop_ahead(training_events)

    @contextmanager
    def kept(self, emit: Emit) -> Iterator[Emit]:
        """An `emit` that copies every new checkpoint to a store elsewhere, in a thread beside the training. When the
        block has ended, the last one is there too."""
        if self._local is not None:
            yield emit
            return
        with ThreadPoolExecutor(1, thread_name_prefix="checkpoints") as pool:

            def emit_and_copy(event: Event) -> None:
                emit(event)
                if isinstance(event, CheckpointSaved):
                    pool.submit(self._copy_logged)

            try:
                yield emit_and_copy
            finally:
                pool.submit(self._copy_logged)

    def _earlier_attempts(self) -> list[int]:
        if self._local is None:
            names = {key.removeprefix(f"{self._job}/").split("/")[0] for key in self._store.files(self._job)}
        else:
            names = {path.name for path in self._local.glob("*")}
        return sorted(number for name in names if name.isdigit() and (number := int(name)) < self._attempt)

    def _fetch(self, earlier: int) -> None:
        if self._local is not None:
            (self._local / str(earlier)).rename(self.folder)
        else:
            self._store.get_folder(f"{self._job}/{earlier}", self.folder)

    def _drop_ahead(self, training_events: int) -> None:
        from worker.distill.checkpoint import complete_checkpoints

        for found in complete_checkpoints(self.folder):
            if found.moment.training_events > training_events:
                log.warning("a checkpoint is ahead of the stored events and dropped", step=found.step)
                shutil.rmtree(found.path)

    def _copy_logged(self) -> None:
        try:
            self._copy()
        except Exception as error:  # a store that is away; the next copy, or the last one, tries again
            log.warning("a checkpoint could not be copied to the store", error=repr(error))

    def _copy(self) -> None:
        """Makes the store's folder what `folder` is: complete entries only, each written once and never changed."""
        there = {key.removeprefix(f"{self._key}/").split("/")[0] for key in self._store.files(self._key)}
        here = {path.name for path in self.folder.glob("[!.]*")}
        for name in here - there:
            self._store.put_folder(self.folder / name, f"{self._key}/{name}")
        for name in there - here:
            self._store.delete(f"{self._key}/{name}")
        for attempt in self._earlier_attempts() if here else ():
            self._store.delete(f"{self._job}/{attempt}")
