"""What goes wrong: one function per kind of fault, and the order in which a seed draws them.

Knows how each thing is broken, and mended where nobody else would. Does not know what should come of it.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType

import psutil
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from app.core.db.jobs import checkpoints_key
from app.core.errors import DiskFull
from app.doorbell import Doorbell
from app.sweeper import Sweeper
from benchmarks.chaos.house import BACK_ENDS, WORKERS, utc_now
from benchmarks.chaos.life import Life, Submitted
from worker.distill.checkpoint import MANIFEST, complete_checkpoints

Fault = Callable[[Life, random.Random], None]
# For what a fault needs, and then for what it does; a fault that comes too late to do harm is one all the same.
PATIENCE_S = 60.0
# So often a process is killed while it trains; else at any moment of its life.
_IN_TRAINING = 0.7


def _kill(name: str, life: Life, _chance: random.Random) -> None:
    with suppress(psutil.NoSuchProcess):
        life.house.process(name).kill()


def kill_worker(life: Life, chance: random.Random) -> None:
    _kill(_busy_worker(life, chance), life, chance)


def kill_comparing_worker(life: Life, chance: random.Random) -> None:
    """At some moment of a comparison."""
    life.compare()
    life.wait(chance.uniform(0.0, 3.0))
    _kill("comparing", life, chance)


def kill_training_process(life: Life, chance: random.Random) -> None:
    for process in life.house.trainings(_busy_worker(life, chance)):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def stop_worker_past_its_lease(life: Life, chance: random.Random) -> None:
    """Until somebody else has its job, or the job has ended. Then it goes on, as a machine that was suspended does."""
    job = _running_job(life, chance)
    name = _worker_of(job)
    attempt = job.row["attempt"]
    with _stopped([life.house.process(name), *life.house.trainings(name)]):

        def is_lost() -> bool:
            return job.row["attempt"] != attempt or job.row["status"] != "running"

        # A worker that was stopped in the middle of a transaction holds up everybody until it goes on.
        life.until(is_lost, what="a stopped worker's job is somebody else's", timeout_s=PATIENCE_S)


def wipe_broker(life: Life, chance: random.Random) -> None:
    """Redis: killed, away for a while, and back without its data. Files: all messages are removed."""
    if (redis := life.house.redis) is not None:
        redis.stop(signal.SIGKILL)
        life.wait(chance.uniform(0.5, 5.0))
        redis.start()
    else:
        for message in (life.house.service.settings.broker_folder / "messages").glob("*.msg"):
            message.unlink(missing_ok=True)


def restart_database(life: Life, chance: random.Random) -> None:
    """PostgreSQL: every connection breaks where it is, and the server is away for a while."""
    postgres = life.house.postgres
    assert postgres is not None, "only drawn where there is one"
    postgres.stop(signal.SIGQUIT)
    life.wait(chance.uniform(0.5, 8.0))
    postgres.start()


def lock_database(life: Life, chance: random.Random) -> None:
    """SQLite: another process holds the only write lock, at times for longer than a lease."""
    with life.house.engine.connect() as connection:
        connection.execute(text("SELECT 1"))  # every transaction of ours on SQLite begins with the lock
        life.wait(chance.uniform(1.0, 10.0))


def double_messages(life: Life, chance: random.Random) -> None:
    """Every job is announced again, whatever its status: as a broker may deliver a message twice, or late."""
    for job_id in life.accepted:
        for _ in range(chance.randint(1, 3)):
            with suppress(Exception):  # the broker may just be away
                life.house.queue.announce_training(job_id)


def fill_disk(life: Life, chance: random.Random) -> None:
    """Until a job is paused for it. Some space is left, so that writing begins at times."""
    _running_job(life, chance)
    disk = life.house.disk
    disk.fill(chance.choice((0, 200_000, 1_500_000)))
    try:
        life.until(lambda: any(map(_waits_for_space, life.jobs)), what="a job waits for space", timeout_s=PATIENCE_S)
    finally:
        disk.clear()


def damage_newest_checkpoint(life: Life, chance: random.Random) -> None:
    """The training that would write a newer one is stopped first and killed afterwards."""
    job = _running_job(life, chance)
    trainings = life.house.trainings(_worker_of(job))
    with _stopped(trainings):
        kept = life.house.storage / checkpoints_key(job.id or "") / str(job.row["attempt"])
        if found := complete_checkpoints(kept):
            _damage(found[-1].path, chance)
        for process in trainings:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _damage(folder: Path, chance: random.Random) -> None:
    how = chance.choice(("flip", "cut", "remove", "empty manifest"))
    target = chance.choice(sorted(path for path in folder.iterdir() if path.name != MANIFEST))
    if how == "flip":
        content = bytearray(target.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        target.write_bytes(content)
    elif how == "cut":
        target.write_bytes(target.read_bytes()[:-7])
    elif how == "remove":
        target.unlink()
    else:
        (folder / MANIFEST).write_bytes(b"")


def jump_clock(life: Life, chance: random.Random) -> None:
    """A second sweeper looks at the leases with a clock that is some leases ahead, or far behind."""
    _running_job(life, chance)
    lease_s = life.house.service.settings.lease_s
    skew = timedelta(seconds=chance.choice((-3600.0, 1.5 * lease_s, 3 * lease_s)))

    def clock() -> object:
        return utc_now() + skew

    doorbell = Doorbell(queue=life.house.queue, sessions=life.house.sessions, clock=clock)  # type: ignore[arg-type]
    sweeper = Sweeper(
        sessions=life.house.sessions,
        doorbell=doorbell,
        lease_s=lease_s,
        sweep_s=life.house.service.settings.sweep_s,
        clock=clock,  # type: ignore[arg-type]
    )
    with suppress(OperationalError):  # a sweep that finds no database changes nothing
        sweeper.sweep()


_EVERYWHERE: Mapping[str, Fault] = MappingProxyType(
    {
        "kill_worker": kill_worker,
        "kill_training_process": kill_training_process,
        "kill_api": partial(_kill, "api"),
        "kill_ui": partial(_kill, "ui"),
        "kill_comparing_worker": kill_comparing_worker,
        "worker_stopped_past_its_lease": stop_worker_past_its_lease,
        "broker_wiped": wipe_broker,
        "messages_doubled": double_messages,
        "disk_full": fill_disk,
        "checkpoint_damaged": damage_newest_checkpoint,
        "clock_jump": jump_clock,
    }
)
FAULTS: Mapping[str, Mapping[str, Fault]] = MappingProxyType(
    {
        BACK_ENDS[0]: MappingProxyType({**_EVERYWHERE, "database_locked": lock_database}),
        BACK_ENDS[1]: MappingProxyType({**_EVERYWHERE, "database_restarted": restart_database}),
    }
)


def drawn(back_end: str, *, count: int, chance: random.Random) -> Iterator[str]:
    """`count` kinds of fault: in every stretch of as many as there are kinds, each kind once."""
    kinds: Sequence[str] = sorted(FAULTS[back_end])
    for start in range(0, count, len(kinds)):
        yield from chance.sample(kinds, len(kinds))[: count - start]


def _waits_for_space(job: Submitted) -> bool:
    error = job.row.get("error") or {}
    return job.row.get("status") == "paused" and error.get("code") == DiskFull.code


def _worker_of(job: Submitted) -> str:
    return str(job.row["worker"]).split("@")[0]


def _running_job(life: Life, chance: random.Random) -> Submitted:
    """One that trains right now, at a step that nobody chose."""
    life.until(lambda: any(life.house.trainings(_worker_of(job)) for job in life.running()), what="a job trains")
    return chance.choice([job for job in life.running() if life.house.trainings(_worker_of(job))])


def _busy_worker(life: Life, chance: random.Random) -> str:
    """One that has a training process: mostly one that is past its first step, at times one that still loads models."""
    if chance.random() < _IN_TRAINING:
        return _worker_of(_running_job(life, chance))
    life.until(lambda: any(life.house.trainings(name) for name in WORKERS), what="a worker trains")
    return chance.choice([name for name in WORKERS if life.house.trainings(name)] or list(WORKERS))


@contextmanager
def _stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()
