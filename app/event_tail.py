"""The end of a job's events, read once for all who wait for it.

Knows asyncio and places in a job's events (the seq after which something is wanted). Does not know HTTP or how events
are read: its `read` does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from fastapi.concurrency import run_in_threadpool

Place: TypeAlias = tuple[str, int]  # job id, seq


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Events after some place, as they go over the wire. `is_end`: no event will ever follow."""

    body: bytes
    last_seq: int
    is_end: bool


class EventTail:
    """Any number of streams of one job that have caught up cost one query per `poll_s`, and no connection in between.

    `read(job_id, seq)` runs in a thread. One event loop only.
    """

    def __init__(self, read: Callable[[str, int], Chunk], *, poll_s: float) -> None:
        self._read = read
        self._poll_s = poll_s
        self._news: dict[Place, asyncio.Task[Chunk]] = {}
        self._waiting: Counter[Place] = Counter()

    async def after(self, job_id: str, seq: int) -> Chunk:
        """The next events after `seq`, once there are any, or the news that none will come. May be cancelled."""
        place = (job_id, seq)
        news = self._news.get(place)
        if news is None:
            news = self._news[place] = asyncio.create_task(self._wait_for_news(job_id, seq))
        self._waiting[place] += 1
        try:
            return await asyncio.shield(news)
        finally:
            self._waiting[place] -= 1
            if not self._waiting[place]:  # the last one leaves, with the news or without
                del self._waiting[place], self._news[place]
                news.cancel()

    async def _wait_for_news(self, job_id: str, seq: int) -> Chunk:
        while True:
            chunk = await run_in_threadpool(self._read, job_id, seq)
            if chunk.body or chunk.is_end:
                return chunk
            await asyncio.sleep(self._poll_s)
