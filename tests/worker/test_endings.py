"""Every way to fail becomes a code and words that help."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from app.core.errors import (
    BadDataset,
    Cancelled,
    DiskFull,
    Hung,
    InternalError,
    NonFiniteLoss,
    NotFound,
    OutOfMemory,
    WorkerLost,
)
from app.core.job_config import TeacherConfig
from app.core.storage import ArtifactStore
from worker.endings import WORTH_ANOTHER_TRY, Ending, as_told, ending
from worker.training import KilledForMemory


def end(error: Exception) -> Ending:
    return ending(error, memory_cure="lower training.batch_size", log_name="training")


def test_foreseen_error_keeps_its_code_and_message() -> None:
    found = end(BadDataset("row 3 has no prompt", "data.path"))
    assert (found.status, found.code, found.message) == ("failed", "bad_dataset", "data.path: row 3 has no prompt")
    assert end(NonFiniteLoss("step 4")).code == "non_finite_loss"


def test_cancelled_is_no_failure() -> None:
    found = end(Cancelled("stopped after step 3"))
    assert (found.status, found.code, found.message) == ("cancelled", None, "stopped after step 3")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] data. DefaultCPUAllocator: can't allocate memory: 8 bytes"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8 GB)"),
    ],
)
def test_out_of_memory_names_what_to_lower(error: Exception) -> None:
    found = end(error)
    assert (found.status, found.code) == ("failed", OutOfMemory.code)
    assert "lower training.batch_size" in found.message


def test_what_the_allocator_said_is_kept() -> None:
    found = end(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nSee documentation"))
    assert "Tried to allocate 2.00 GiB" in found.message
    assert "documentation" not in found.message


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_wherever_it_shows(number: int) -> None:
    told = as_told(OSError(number, "No space left on device", "/data/x"), log_name="training")
    assert isinstance(told, DiskFull)
    assert "/data/x" in str(told)


@contextmanager
def no_large_files() -> Iterator[None]:
    """The kernel refuses to write more than 1,000 bytes to any file, as on a disk that becomes full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("put", ["put_folder", "put_file"])
def test_a_disk_that_is_full_when_the_student_is_stored_is_one(put: str, tmp_path: Path) -> None:
    student, store = tmp_path / "student", ArtifactStore((tmp_path / "store").as_uri())
    student.mkdir()
    for name in ("weights", "more weights"):
        (student / name).write_bytes(bytes(5000))
    what = student if put == "put_folder" else student / "weights"
    with pytest.raises(OSError, match="too large") as raised, no_large_files():
        getattr(store, put)(what, "students/mdl_1")
    assert isinstance(as_told(raised.value, log_name="training"), DiskFull)
    assert store.children("students") == []


def test_only_what_may_not_happen_again_is_worth_another_try() -> None:
    assert all(isinstance(error("m"), WORTH_ANOTHER_TRY) for error in (WorkerLost, Hung, KilledForMemory))
    for error in (OutOfMemory, NonFiniteLoss, BadDataset, NotFound, InternalError):
        assert not isinstance(error("m"), WORTH_ANOTHER_TRY)


def test_real_cpu_allocation_failure_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**62, dtype=torch.uint8)
    assert end(caught.value).code == OutOfMemory.code


def test_description_of_another_version_says_what_it_refuses() -> None:
    with pytest.raises(ValidationError) as caught:
        TeacherConfig.model_validate({"model": "x", "bits": 4})
    found = end(caught.value)
    assert found.code == "invalid_request"
    assert "bits" in found.message


def test_unforeseen_error_says_where_the_traceback_is() -> None:
    found = end(KeyError("lm_head"))
    assert (found.status, found.code) == ("failed", "internal_error")
    assert "KeyError: 'lm_head'" in found.message
    assert "logs/training.log" in found.message


def test_message_can_be_stored_anywhere() -> None:
    assert "\x00" not in end(KeyError("a\x00b")).message
    assert len(end(ValueError("x" * 100_000)).message) < 10_000
