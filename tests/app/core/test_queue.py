"""Messages on real brokers: a folder, and Redis where there is one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from app.core.queue import COMPARING_QUEUE, TRAINING_QUEUE, CeleryQueue, RecordingQueue, make_celery
from app.core.settings import ServiceSettings


@pytest.fixture(params=["folder", pytest.param("redis", marks=pytest.mark.service)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> ServiceSettings:
    url = request.getfixturevalue("redis_url") if request.param == "redis" else None
    return ServiceSettings(home=tmp_path, broker_url=url)


def take(app: Celery, queue_name: str) -> tuple[str, list[Any]]:
    """Task name and arguments of the queue's next message, as a consumer would get them."""
    with app.connection_for_read() as connection, connection.SimpleQueue(app.amqp.queues[queue_name]) as queue:
        message = queue.get(timeout=5)
        message.ack()
        assert message.content_type == "application/json"
        return message.headers["task"], message.payload[0]


def drained(app: Celery) -> Celery:
    with app.connection_for_write() as connection:
        for name in (TRAINING_QUEUE, COMPARING_QUEUE):
            bound = app.amqp.queues[name](connection.default_channel)
            bound.declare()
            bound.purge()
    return app


def test_messages_reach_the_queue_of_their_task(settings: ServiceSettings) -> None:
    producer = CeleryQueue(drained(make_celery(settings)))
    producer.announce_training("job_1")
    producer.announce_comparison("cmp_1")
    consumer = make_celery(settings)  # another process would make its own
    assert take(consumer, COMPARING_QUEUE) == ("stillhouse.compare", ["cmp_1"])
    assert take(consumer, TRAINING_QUEUE) == ("stillhouse.train", ["job_1"])


def test_a_broker_that_is_there_passes_the_check(settings: ServiceSettings) -> None:
    CeleryQueue(make_celery(settings)).check()


def test_a_broker_that_is_away_fails_fast(tmp_path: Path) -> None:
    queue = CeleryQueue(make_celery(ServiceSettings(home=tmp_path, broker_url="redis://127.0.0.1:1/0")))
    for call in (queue.check, lambda: queue.announce_training("job_1")):
        started = time.monotonic()
        with pytest.raises(Exception, match="refused"):
            call()
        assert time.monotonic() - started < 5


def test_workers_take_one_task_and_acknowledge_it_early(settings: ServiceSettings) -> None:
    conf = make_celery(settings).conf
    assert (conf.worker_prefetch_multiplier, conf.task_acks_late) == (1, False)
    assert conf.accept_content == ["json"]


def test_the_recording_twin() -> None:
    twin = RecordingQueue()
    twin.announce_training("job_1")
    twin.announce_comparison("cmp_1")
    assert twin.announced == [("stillhouse.train", "job_1"), ("stillhouse.compare", "cmp_1")]
    with pytest.raises(ConnectionError):
        RecordingQueue(fail=True).announce_training("job_1")
