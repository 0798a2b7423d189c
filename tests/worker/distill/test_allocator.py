"""Page faults of a process that takes and frees large tensors again and again, and the heap of one that multiplies
ever other sizes: counted, with and without the call."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from worker.distill.allocator import keep_few_kernels

PROGRAM = """
import resource, sys, torch
from worker.distill.allocator import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else False
def work():
    for _ in range(3):
        torch.zeros(12 * 2**20)
for _ in range(5):
    work()  # the heap grows until a place for every size is free
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(way: str) -> tuple[bool, int]:
    run = subprocess.run([sys.executable, "-c", PROGRAM, way], capture_output=True, text=True, check=True)
    kept, count = run.stdout.split()
    return kept == "1", int(count)


def test_a_large_tensor_finds_its_pages_in_place() -> None:
    kept, few = faults("keep")
    if not kept:
        pytest.skip("this C library gives memory back as it likes")
    assert few < 20_000  # one place more, at most
    assert faults("default")[1] > 36_000  # each of three tensors of 12,288 pages of 4 KiB


SIZES = """
import ctypes, sys, torch
from worker.distill.allocator import keep_few_kernels
if sys.argv[1] == "few":
    keep_few_kernels()
class Heap(ctypes.Structure):
    _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]
heap = getattr(ctypes.CDLL(None), "mallinfo2", None)
if heap is None:
    sys.exit(3)
heap.restype = Heap
weight = torch.ones(64, 64, dtype=torch.bfloat16)
def multiply(rows):
    torch.ones(rows, 64, dtype=torch.bfloat16) @ weight
    return heap().field7  # bytes in use
before = multiply(1)
for rows in range(2, 601):
    after = multiply(rows)
print(after - before)
"""


def heap_of(way: str) -> int:
    """Bytes that stay in use after products of 600 sizes."""
    plain = {name: value for name, value in os.environ.items() if not name.endswith("_CACHE_CAPACITY")}
    run = subprocess.run([sys.executable, "-c", SIZES, way], capture_output=True, text=True, check=False, env=plain)
    if run.returncode == 3:
        pytest.skip("this C library does not tell what is in use")
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


def test_kernels_of_sizes_that_do_not_come_back_are_dropped() -> None:
    default = heap_of("default")
    if default < 100 * 2**20:
        pytest.skip("here no kernel is compiled for a size")
    assert heap_of("few") < default / 2  # 128 of 600


def test_what_the_environment_says_of_kernels_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    keep_few_kernels()
    assert os.environ["LRU_CACHE_CAPACITY"] == "7"
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "128"
