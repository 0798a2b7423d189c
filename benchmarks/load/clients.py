"""Clients of the API, and what their waiting comes down to.

Knows HTTP and percentiles. Does not know what is asked.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import httpx


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p99 and the longest, in milliseconds."""
    several = seconds if len(seconds) > 1 else [*seconds, *seconds]  # two are the least that have quantiles
    cuts = statistics.quantiles(several, n=100, method="inclusive")
    found = {"p50_ms": cuts[49], "p95_ms": cuts[94], "p99_ms": cuts[98], "max_ms": max(seconds)}
    return {name: round(value * 1000, 2) for name, value in found.items()} | {"requests": len(seconds)}


def timed(http: httpx.Client, requests: Iterable[tuple[str, Mapping[str, object]]]) -> list[float]:
    """Seconds that each GET (path, parameters) took, answer read, one after the other. Raises for what is not 2xx."""
    seconds = []
    for path, params in requests:
        started = time.perf_counter()
        http.get(path, params=params).raise_for_status()  # type: ignore[arg-type]  # httpx's own narrow union
        seconds.append(time.perf_counter() - started)
    return seconds


def at_once(
    base_url: str, bodies: Sequence[Mapping[str, object]], *, clients: int
) -> tuple[list[str], list[float], float]:
    """POSTs `bodies` to /v1/jobs from so many connections. The ids that came back, each request's seconds, and all."""
    ids: list[str] = []
    seconds: list[float] = []
    next_one, lock = itertools.count(), threading.Lock()

    def client() -> None:
        with httpx.Client(base_url=base_url, timeout=60.0, trust_env=False) as http:
            while (number := next(next_one)) < len(bodies):
                started = time.perf_counter()
                answer = http.post("/v1/jobs", json=bodies[number]).raise_for_status().json()
                with lock:
                    seconds.append(time.perf_counter() - started)
                    ids.append(answer["id"])

    started = time.perf_counter()
    in_threads(client, clients)
    return ids, seconds, time.perf_counter() - started


def in_threads(work: Callable[[], None], count: int) -> None:
    """Raises the first error that one of them met."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
