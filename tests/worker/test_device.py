"""The device is found without torch: from a real nvidia-smi's answers, which a script on the PATH gives here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from worker.device import Device, find_device, host_memory_bytes

TWO_GPUS = """0, GPU-aaaa1111, NVIDIA H200, 143771
1, GPU-bbbb2222, NVIDIA L4, 23034"""
H200 = Device(name="NVIDIA H200", memory_bytes=143771 * 2**20)
L4 = Device(name="NVIDIA L4", memory_bytes=23034 * 2**20)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with an nvidia-smi of two GPUs."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{TWO_GPUS}\nEND\n")
    program.chmod(0o755)
    return f"{tmp_path}:/usr/bin:/bin"


@pytest.mark.parametrize(
    ("visible", "device"),
    [(None, H200), ("0", H200), ("1", L4), ("1,0", L4), ("GPU-bbbb", L4), ("GPU-aaaa1111", H200)],
)
def test_the_first_gpu_that_cuda_would_see(path: str, visible: str | None, device: Device) -> None:
    environment = {"PATH": path} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert find_device(environment, torch_version="2.13.0") == device


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_gpus_are_not_used(path: str, visible: str) -> None:
    found = find_device({"PATH": path, "CUDA_VISIBLE_DEVICES": visible}, torch_version="2.13.0")
    assert found.memory_bytes == host_memory_bytes()


def test_a_torch_without_cuda_uses_none(path: str) -> None:
    assert find_device({"PATH": path}, torch_version="2.13.0+cpu").memory_bytes == host_memory_bytes()


@pytest.mark.parametrize("script", ["exit 9", "echo 'NVIDIA-SMI has failed'", "echo '0, GPU-1, Odd, [N/A]'"])
def test_a_driver_that_does_not_answer_is_no_gpu(tmp_path: Path, script: str) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    assert find_device({"PATH": f"{tmp_path}:/bin"}, torch_version="2.13.0").memory_bytes == host_memory_bytes()


def test_memory_of_the_machine_is_a_limit() -> None:
    assert 2**28 < host_memory_bytes() <= psutil.virtual_memory().total


def test_torch_is_not_imported() -> None:
    program = "import sys, worker.presence, worker.celery_app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
