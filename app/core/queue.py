"""The doorbell: tells workers that something waits. A message carries an id, but a worker claims what the database
puts first, so a message that is lost, doubled or late does no harm.

Knows Celery, task names and queues. Does not know the database (callers commit first) or what the tasks do.
"""

from __future__ import annotations

from typing import Protocol

from celery import Celery
from kombu import Connection, Queue

from app.core.settings import ServiceSettings

TRAIN_TASK = "stillhouse.train"
COMPARE_TASK = "stillhouse.compare"
TRAINING_QUEUE = "training"
COMPARING_QUEUE = "comparing"
_ONE_TRY = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
_ROUTES = {TRAIN_TASK: {"queue": TRAINING_QUEUE}, COMPARE_TASK: {"queue": COMPARING_QUEUE}}


class JobQueue(Protocol):
    """What a route or the sweeper rings after it has committed. Either call may raise any broker error."""

    def announce_training(self, job_id: str) -> None: ...

    def announce_comparison(self, comparison_id: str) -> None: ...

    def check(self) -> None:
        """Returns when the broker can be reached; raises what the broker raised otherwise."""


class CeleryQueue:
    """Messages through Celery's broker. Fails at once when it is away: the sweeper announces again."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def announce_training(self, job_id: str) -> None:
        self._send(TRAIN_TASK, job_id)

    def announce_comparison(self, comparison_id: str) -> None:
        self._send(COMPARE_TASK, comparison_id)

    def check(self) -> None:
        with self._connection() as connection:
            connection.ensure_connection(**_ONE_TRY)

    def _send(self, task: str, subject_id: str) -> None:
        with self._connection() as connection:
            self._app.send_task(task, args=[subject_id], connection=connection, retry=False, ignore_result=True)

    def _connection(self) -> Connection:
        # By default kombu tries for six seconds behind any use of a connection, and a request would wait for it.
        return self._app.connection_for_write(transport_options=_ONE_TRY)


class RecordingQueue:
    """A working twin for tests: remembers what was announced, in order; `fail` makes it behave like a broker that is
    away."""

    def __init__(self, *, fail: bool = False) -> None:
        self.announced: list[tuple[str, str]] = []
        self.fail = fail

    def announce_training(self, job_id: str) -> None:
        self._record(TRAIN_TASK, job_id)

    def announce_comparison(self, comparison_id: str) -> None:
        self._record(COMPARE_TASK, comparison_id)

    def check(self) -> None:
        if self.fail:
            raise ConnectionError("the broker is away")

    def _record(self, task: str, subject_id: str) -> None:
        self.check()
        self.announced.append((task, subject_id))


def make_celery(settings: ServiceSettings) -> Celery:
    """The Celery application of producers (API) and consumers (worker). Creates the folders of a filesystem broker.

    Early acknowledgement and prefetch 1: a job may run for hours, and the database, not the broker, knows whether it
    is done. Workers run with `--pool=solo`, one task at a time in their own process; a training starts its own.
    """
    url = settings.resolved_broker_url
    options: dict[str, object] = {}
    transport = None  # the URL's own
    if url.startswith("filesystem"):
        messages, control = settings.broker_folder / "messages", settings.broker_folder / "control"
        for folder in (messages, control):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        transport = "app.core.folder_transport:Transport"
        # One folder both ways: what a producer puts out is what a consumer takes in.
        options = {"data_folder_in": str(messages), "data_folder_out": str(messages), "control_folder": str(control)}
    elif url.startswith("redis"):
        options = {"socket_connect_timeout": 2.0}
    app = Celery("stillhouse", broker=url)
    app.conf.update(
        broker_transport=transport,
        broker_transport_options=options,
        broker_connection_retry_on_startup=True,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=False,
        task_queues=[Queue(TRAINING_QUEUE), Queue(COMPARING_QUEUE)],
        task_routes=_ROUTES,
        task_default_queue=TRAINING_QUEUE,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=url.startswith("redis"),  # the only broker that Celery can do it for
        worker_hijack_root_logger=False,
    )
    return app
