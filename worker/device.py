"""Which device this process's trainings would compute on, and how much memory it has, without importing torch.

Knows nvidia-smi, CUDA_VISIBLE_DEVICES and control groups. Own code because torch would answer in one line, but takes
seconds to import and a few hundred MiB of device memory, for as long as the worker lives.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_TIMEOUT_S = 20.0  # the driver may have to wake the devices


@dataclass(frozen=True, kw_only=True)
class Device:
    name: str
    memory_bytes: int


def find_device(environment: Mapping[str, str], *, torch_version: str | None = None) -> Device:
    """The first GPU that CUDA would see, else Apple's, else the processor with this machine's memory (or as much of it
    as the container may use). `torch_version`: the installed one's, if None; `+cpu` builds use no GPU."""
    version = torch_version or installed_version("torch") or "+cpu"
    gpu = None if version.endswith("+cpu") else _first_visible_gpu(environment)
    if gpu is not None:
        return gpu
    is_apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    return Device(name="mps" if is_apple else "cpu", memory_bytes=host_memory_bytes())


def host_memory_bytes() -> int:
    limits = [int(file.read_text()) for file in _CGROUP_LIMITS if file.exists() and file.read_text().strip().isdigit()]
    return min([psutil.virtual_memory().total, *limits])


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first_visible_gpu(environment: Mapping[str, str]) -> Device | None:
    """As CUDA numbers them when CUDA_DEVICE_ORDER is PCI_BUS_ID; on machines with unlike GPUs set that."""
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if program is None or (visible is not None and visible.strip() in ("", "-1", "NoDevFiles")):
        return None
    query = [program, "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [[field.strip() for field in line.split(",")] for line in found.splitlines() if line.count(",") == 3]
    first = (visible or "").split(",")[0].strip()
    chosen = [row for row in rows if first and (row[0] == first or row[1].startswith(first))] or rows
    if not chosen or not chosen[0][3].isdigit():
        return None
    return Device(name=chosen[0][2], memory_bytes=int(chosen[0][3]) * 2**20)
