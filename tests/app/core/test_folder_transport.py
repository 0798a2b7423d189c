"""A message is never seen half-written, whatever the timing."""

from __future__ import annotations

import threading
from pathlib import Path

from app.core.queue import CeleryQueue, make_celery
from app.core.settings import ServiceSettings


def test_a_message_appears_whole(tmp_path: Path) -> None:
    """With kombu's own transport some of these files are empty when they are first seen."""
    settings = ServiceSettings(home=tmp_path)
    queue = CeleryQueue(make_celery(settings))
    done = threading.Event()
    first_sizes: dict[str, int] = {}

    def watch() -> None:
        while not done.is_set():
            for file in (settings.broker_folder / "messages").glob("*.msg"):
                if file.name not in first_sizes:
                    first_sizes[file.name] = file.stat().st_size

    watcher = threading.Thread(target=watch)
    watcher.start()
    for i in range(200):
        queue.announce_training(f"job_{i}")
    done.set()
    watcher.join()
    assert len(first_sizes) > 10
    assert min(first_sizes.values()) > 100
    assert len(list((settings.broker_folder / "messages").iterdir())) == 200
