"""Who waits for the same events shares one reading, and who leaves takes nothing from the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from app.event_tail import Chunk, EventTail


class Source:
    """Events by number; counts how often it is read."""

    def __init__(self) -> None:
        self.newest = 0
        self.has_ended = False
        self.reads = 0

    def __call__(self, job_id: str, seq: int) -> Chunk:
        self.reads += 1
        numbers = range(seq + 1, self.newest + 1)
        body = b"".join(f"{job_id}:{number};".encode() for number in numbers)
        return Chunk(body=body, last_seq=self.newest, is_end=self.has_ended)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def test_many_who_wait_cost_one_reading() -> None:
    async def scenario() -> None:
        source = Source()
        tail = EventTail(source, poll_s=0.01)
        waiting = [asyncio.create_task(tail.after("a", 0)) for _ in range(200)]
        await until(lambda: source.reads >= 3)
        reads, source.newest = source.reads, 2
        chunks = await asyncio.gather(*waiting)
        assert {chunk.body for chunk in chunks} == {b"a:1;a:2;"}
        assert source.reads <= reads + 2
        assert not tail._news
        assert not tail._waiting

    asyncio.run(scenario())


def test_each_place_is_read_for_itself() -> None:
    async def scenario() -> None:
        source = Source()
        source.newest = 3
        tail = EventTail(source, poll_s=0.01)
        chunks = await asyncio.gather(tail.after("a", 0), tail.after("a", 2), tail.after("b", 2))
        assert [chunk.body for chunk in chunks] == [b"a:1;a:2;a:3;", b"a:3;", b"b:3;"]

    asyncio.run(scenario())


def test_who_leaves_does_not_end_the_reading_for_the_others() -> None:
    async def scenario() -> None:
        source = Source()
        tail = EventTail(source, poll_s=0.01)
        impatient, patient = (asyncio.create_task(tail.after("a", 0)) for _ in range(2))
        await until(lambda: source.reads >= 2)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        source.newest = 1
        assert (await patient).body == b"a:1;"

    asyncio.run(scenario())


def test_nobody_waits_nothing_is_read() -> None:
    async def scenario() -> None:
        source = Source()
        tail = EventTail(source, poll_s=0.01)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await tail.after("a", 0)
        assert not tail._news
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.gather(*tasks, return_exceptions=True)
        reads = source.reads
        await asyncio.sleep(0.1)
        assert source.reads == reads

    asyncio.run(scenario())


def test_the_end_is_told_without_events() -> None:
    async def scenario() -> None:
        source = Source()
        source.newest, source.has_ended = 4, True
        chunk = await EventTail(source, poll_s=0.01).after("a", 4)
        assert (chunk.body, chunk.is_end) == (b"", True)

    asyncio.run(scenario())


def test_an_error_reaches_everyone_and_is_not_remembered() -> None:
    async def scenario() -> None:
        source, is_away = Source(), True

        def read(job_id: str, seq: int) -> Chunk:
            if is_away:
                raise OSError("the database is away")
            return source(job_id, seq)

        tail = EventTail(read, poll_s=0.01)
        errors = await asyncio.gather(tail.after("a", 0), tail.after("a", 0), return_exceptions=True)
        assert [type(error) for error in errors] == [OSError, OSError]
        is_away, source.newest = False, 1
        assert (await tail.after("a", 0)).body == b"a:1;"

    asyncio.run(scenario())
