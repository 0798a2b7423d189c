"""Many readers of one job's event stream: `python -m benchmarks.load.watchers HOST PORT PATH COUNT`.

Says "ready" once all of them receive, reads until its standard input is closed, and then prints what they got as JSON.
A process of its own that knows sockets, and of HTTP just enough: it must cost little, for it shares the machine with
what it watches.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import dataclass

_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)


@dataclass
class Received:
    """What all watchers read; `ids` is what the first one saw, to check."""

    num_bytes: int = 0
    ready: int = 0
    first: bytes = b""


async def watch(host: str, port: int, path: str, received: Received, *, is_first: bool) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n".encode())
    is_ready = False
    while piece := await reader.read(262144):  # the first one has the head, and events if there are any already
        received.num_bytes += len(piece)
        if is_first:
            received.first += piece
        received.ready += not is_ready
        is_ready = True


async def main(host: str, port: int, path: str, count: int) -> None:
    received = Received()
    watchers = [asyncio.create_task(watch(host, port, path, received, is_first=number == 0)) for number in range(count)]
    while received.ready < count:
        await asyncio.sleep(0.05)
        for ended in (task for task in watchers if task.done()):
            ended.result()  # raises why it ended
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    is_whole = not any(task.done() for task in watchers)
    for task in watchers:
        task.cancel()
    await asyncio.gather(*watchers, return_exceptions=True)
    ids = [int(found) for found in _ID.findall(received.first)]
    print(json.dumps({"bytes": received.num_bytes, "ids": ids, "all_stayed": is_whole}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
