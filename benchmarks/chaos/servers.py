"""PostgreSQL and Redis processes of a run's own, so that it may stop, kill and empty them.

Knows how both are started, also by root, as whom PostgreSQL refuses to run. Does not know what is kept in them.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import redis

from app.core.errors import StillhouseError
from app.guardian import Guardian
from tests.running_service import free_port

_START_S = 60.0
INSTALLED = Path("/usr/lib/postgresql")


class ProgramMissing(StillhouseError):
    code = "program_missing"


class Server:
    """One server process on a port of its own. `answers` raises as long as it does not answer."""

    def __init__(
        self, command: Sequence[str], *, answers: Callable[[], object], log: Path, guardian: Guardian, user: str | None
    ) -> None:
        self._command = command
        self._answers = answers
        self._log = log
        self._guardian = guardian
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when the server answers."""
        as_user: dict[str, Any] = {"user": self._user, "extra_groups": []} if self._user else {}
        if self._user:
            as_user["group"] = pwd.getpwnam(self._user).pw_gid
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **as_user,
            )
        self._guardian.watch(self._process.pid)
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self._answers()
                return
            except (psycopg.Error, redis.RedisError, OSError) as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{self._command[0]} does not answer, see {self._log}") from error
                time.sleep(0.1)

    def stop(self, number: signal.Signals) -> None:
        """Sends the signal and returns when the process is gone."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._guardian.forget(self._process.pid)
            self._process = None


class Postgres(Server):
    """A new cluster in `folder`, which belongs to whom it runs as."""

    def __init__(self, folder: Path, *, guardian: Guardian) -> None:
        programs = _postgres_programs()
        user = "postgres" if os.getuid() == 0 else None
        self._port = free_port()
        if user:
            shutil.chown(folder, user, pwd.getpwnam(user).pw_gid)
        data = folder / "data"
        initdb = [f"{programs}/initdb", "-D", str(data), "-U", "stillhouse", "--auth=trust", "--encoding=UTF8"]
        as_user: dict[str, Any] = {"user": user, "extra_groups": []} if user else {}
        subprocess.run([*initdb, "--no-sync"], check=True, stdout=subprocess.DEVNULL, **as_user)
        # fsync=off: what a killed server has written is safe in the kernel's memory; only a power cut would lose it.
        options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
        settings = [argument for name, value in options.items() for argument in ("-c", f"{name}={value}")]
        super().__init__(
            [f"{programs}/postgres", "-D", str(data), "-p", str(self._port), *settings],
            answers=lambda: psycopg.connect(self._dsn, connect_timeout=5).close(),
            log=folder / "postgres.log",
            guardian=guardian,
            user=user,
        )

    @property
    def _dsn(self) -> str:
        return f"postgresql://stillhouse@127.0.0.1:{self._port}/postgres"

    @property
    def url(self) -> str:
        return self._dsn.replace("postgresql://", "postgresql+psycopg://")


class Redis(Server):
    """Keeps nothing: a restarted one is empty."""

    def __init__(self, folder: Path, *, guardian: Guardian) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise ProgramMissing("there is no redis-server; on Debian: apt-get install redis-server")
        port = free_port()
        nothing = ["--save", "", "--appendonly", "no", "--dir", str(folder)]
        super().__init__(
            [program, "--port", str(port), "--bind", "127.0.0.1", *nothing],
            answers=lambda: redis.Redis(port=port, socket_connect_timeout=5).ping(),
            log=folder / "redis.log",
            guardian=guardian,
            user=None,
        )
        self.url = f"redis://127.0.0.1:{port}/0"


@contextmanager
def servers() -> Iterator[tuple[Postgres, Redis]]:
    """Both, running and empty; they end with the block, or with this process. Raises ProgramMissing."""
    guardian = Guardian()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="stillhouse-chaos-pg-") as pg_folder,
            tempfile.TemporaryDirectory(prefix="stillhouse-chaos-redis-") as redis_folder,
        ):
            postgres = Postgres(Path(pg_folder), guardian=guardian)
            broker = Redis(Path(redis_folder), guardian=guardian)
            try:
                postgres.start()
                broker.start()
                yield postgres, broker
            finally:
                postgres.stop(signal.SIGQUIT)
                broker.stop(signal.SIGKILL)
    finally:
        guardian.close()


def _postgres_programs() -> Path:
    """Where `postgres` and `initdb` are; distributions keep them off the PATH."""
    on_path = [found] if (found := shutil.which("postgres")) else []
    installed = sorted(INSTALLED.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    for program in [*on_path, *map(str, reversed(installed))]:
        return Path(program).resolve().parent
    raise ProgramMissing("there is no postgres; on Debian: apt-get install postgresql")
