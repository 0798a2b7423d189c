"""Following a row that a worker writes: what it is, every time it has changed, until it has ended.

Knows polling. Does not know rows or HTTP. No connection to the database is held between looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from fastapi.concurrency import run_in_threadpool

T = TypeVar("T")


async def changes(
    read: Callable[[], T], *, poll_s: float, has_ended: Callable[[T], bool], ping_s: float
) -> AsyncIterator[T | None]:
    """What `read` gives, once per change; None when nothing changed for `ping_s`, so that proxies keep the line."""
    loop = asyncio.get_running_loop()
    last, sent_at = None, loop.time()
    while True:
        found = await run_in_threadpool(read)
        if found != last:
            last, sent_at = found, loop.time()
            yield found
        elif loop.time() - sent_at >= ping_s:
            sent_at = loop.time()
            yield None
        if has_ended(found):
            return
        await asyncio.sleep(poll_s)
