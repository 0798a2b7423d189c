"""Removes what nobody needs any more: checkpoints, histories and comparisons that are too old, and files of nobody.

Knows how long things are kept, and which row every file belongs to. Does not know what is in them. Any number of
processes may clean at once: each removal makes sure for itself, in its own transaction, that it may.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path

import structlog
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import comparisons, retention, workers
from app.core.db.jobs import checkpoints_key
from app.core.db.tables import Dataset, Job, Model
from app.core.folder_cache import FolderCache
from app.core.settings import ServiceSettings
from app.core.storage import ArtifactStore

log = structlog.stdlib.get_logger(__name__)

# What is uploaded or written now has no row yet; a day is far longer than any of it takes.
YOUNGEST_ORPHAN = timedelta(days=1)
LOST_WORKERS = timedelta(days=1)
_PAGE = 200


@dataclass(frozen=True, kw_only=True)
class Keep:
    """How long things are kept after they ended; None is for ever."""

    checkpoints: timedelta | None
    events: timedelta | None
    comparisons: timedelta | None

    @classmethod
    def of(cls, settings: ServiceSettings) -> Keep:
        def days(number: float) -> timedelta | None:
            return timedelta(days=number) if number else None

        return cls(
            checkpoints=days(settings.keep_checkpoints_days),
            events=days(settings.keep_events_days),
            comparisons=days(settings.keep_comparisons_days),
        )


@dataclass(frozen=True, kw_only=True)
class Removal:
    """Something that can go. `remove` does it, unless it may not go any more."""

    what: str
    why: str
    remove: Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Cleaner:
    """`states`: the states of teachers that training workers of this machine keep."""

    sessions: sessionmaker[Session]
    store: ArtifactStore
    work_folder: Path
    states: FolderCache
    keep: Keep
    clock: Callable[[], datetime]

    @classmethod
    def of(cls, settings: ServiceSettings, *, sessions: sessionmaker[Session]) -> Cleaner:
        return cls(
            sessions=sessions,
            store=ArtifactStore(settings.resolved_storage_url),
            work_folder=settings.home_folder / "work",
            states=FolderCache(settings.teacher_states_folder, limit_bytes=settings.teacher_states_bytes),
            keep=Keep.of(settings),
            clock=lambda: datetime.now(UTC),
        )

    def clean(self, *, at_most: int | None = None) -> list[Removal]:
        """Removes what `find` finds, at most so much; what it removed."""
        removed = []
        for removal in islice(self.find(), at_most):
            removal.remove()
            removed.append(removal)
        return removed

    def clean_some(self) -> None:
        """A small batch, for a service that has other things to do."""
        for removal in self.clean(at_most=_PAGE):
            log.info("removed", what=removal.what, why=removal.why)

    def find(self) -> Iterator[Removal]:
        """Looks for the next thing only after the one before was handled."""
        yield from self._lost_workers()
        yield from self._checkpoints()
        yield from self._orphans()
        yield from self._work_folders()
        yield from self._teacher_states()
        yield from self._histories()
        yield from self._comparisons()

    def _lost_workers(self) -> Iterator[Removal]:
        silent_s = LOST_WORKERS.total_seconds()
        with self.sessions.begin() as session:
            everyone = workers.list_all(session, now=self.clock(), lease_s=silent_s)

        def remove() -> None:
            with self.sessions.begin() as session:
                workers.remove_lost(session, now=self.clock(), older_than_s=silent_s)

        for worker in everyone:
            if worker.status == "lost":
                why = f"not heard of since {worker.heartbeat_at:%Y-%m-%d}"
                yield Removal(what=f"worker {worker.name}", why=why, remove=remove)

    def _checkpoints(self) -> Iterator[Removal]:
        """Of jobs that ended long ago, unless somebody is asking one. A retry waits for the row, so it never finds half
        of them."""
        if self.keep.checkpoints is None:
            return
        before = self.clock() - self.keep.checkpoints

        def is_free(session: Session, job_id: str) -> bool:
            is_over = retention.is_over(session, job_id=job_id, before=before)
            return is_over and comparisons.uses_checkpoints(session, job_id) is None

        def remove(job_id: str) -> None:
            with self.sessions.begin() as session:
                if is_free(session, job_id):
                    self.store.delete(checkpoints_key(job_id))

        for job_id in self.store.children("checkpoints"):
            with self.sessions.begin() as session:
                can_go = is_free(session, job_id)
            if can_go:
                why = f"the job ended before {before:%Y-%m-%d}"
                yield Removal(what=checkpoints_key(job_id), why=why, remove=partial(remove, job_id))

    def _orphans(self) -> Iterator[Removal]:
        """Files whose row is gone, or was never written because something broke off before."""
        owners: tuple[tuple[str, str, type[Job] | type[Dataset] | type[Model]], ...] = (
            ("checkpoints", "", Job),
            ("datasets", ".jsonl", Dataset),
            ("students", "", Model),
        )
        for folder, suffix, table in owners:
            for name in self.store.children(folder):
                with self.sessions.begin() as session:
                    has_owner = session.get(table, name.removesuffix(suffix)) is not None
                key = f"{folder}/{name}"
                if not has_owner and self._is_old(self.store.changed_at(key)):
                    yield Removal(what=key, why="belongs to nothing", remove=partial(self.store.delete, key))

    def _work_folders(self) -> Iterator[Removal]:
        """What killed workers of this machine left; those elsewhere clean up when they take their next job."""
        for folder in sorted(self.work_folder.glob("job_*")):
            with self.sessions.begin() as session:
                job = session.get(Job, folder.name)
            try:
                newest = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
            except FileNotFoundError:  # a worker removes it right now
                continue
            if (job is None or job.status != "running") and self._is_old(datetime.fromtimestamp(newest, UTC)):
                remove = partial(shutil.rmtree, folder, ignore_errors=True)
                yield Removal(what=str(folder), why="its job does not run", remove=remove)

    def _teacher_states(self) -> Iterator[Removal]:
        """What is over the limit, the longest unused first, and what killed processes left."""
        for entry in self.states.surplus():
            why = f"{entry.bytes:,} bytes, last used on {entry.used_at:%Y-%m-%d}: over the limit"
            yield Removal(what=f"teacher states {entry.key}", why=why, remove=partial(self.states.remove, entry.key))
        for folder, changed_at in self.states.unfinished():
            if self._is_old(changed_at):
                remove = partial(shutil.rmtree, folder, ignore_errors=True)
                yield Removal(what=str(folder), why="was never finished", remove=remove)

    def _histories(self) -> Iterator[Removal]:
        if self.keep.events is None:
            return
        before = self.clock() - self.keep.events

        def remove(job_id: str) -> None:
            has_more = True
            while has_more:  # a transaction each, so that a running job's events need not wait long
                with self.sessions.begin() as session:
                    has_more = retention.trim(session, job_id=job_id, before=before, now=self.clock())

        with self.sessions.begin() as session:
            old = retention.untrimmed(session, before=before, limit=_PAGE)
        for job_id in old:
            why = f"the job ended before {before:%Y-%m-%d}"
            yield Removal(what=f"events and curves of {job_id}", why=why, remove=partial(remove, job_id))

    def _comparisons(self) -> Iterator[Removal]:
        if self.keep.comparisons is None:
            return
        before = self.clock() - self.keep.comparisons
        why = f"ended before {before:%Y-%m-%d}"

        def remove_comparison(comparison_id: str) -> None:
            with self.sessions.begin() as session:
                retention.remove_comparison(session, comparison_id=comparison_id, before=before)

        def remove_batch(batch_id: str) -> None:
            with self.sessions.begin() as session:
                retention.remove_batch(session, batch_id=batch_id, before=before)

        with self.sessions.begin() as session:
            batches = retention.old_batches(session, before=before, limit=_PAGE)
            comparisons = retention.old_comparisons(session, before=before, limit=_PAGE)
        for batch_id in batches:
            yield Removal(what=batch_id, why=why, remove=partial(remove_batch, batch_id))
        for comparison_id in comparisons:
            yield Removal(what=comparison_id, why=why, remove=partial(remove_comparison, comparison_id))

    def _is_old(self, changed_at: datetime | None) -> bool:
        return changed_at is not None and changed_at < self.clock() - YOUNGEST_ORPHAN
