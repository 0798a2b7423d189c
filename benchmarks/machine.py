"""What a figure was measured on, for the head of every result file.

Knows the processor, the accelerator and the versions that matter. Does not measure.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch

CPU_INFO = Path("/proc/cpuinfo")


def describe(
    device: torch.device | str = "cpu", *, packages: tuple[str, ...] = ("torch", "transformers")
) -> dict[str, str]:
    """Processor, usable cores, torch threads, device and the versions of Python and `packages`."""
    facts = {
        "cpu": _cpu_name(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "device": torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else str(device),
        "python": platform.python_version(),
    }
    return facts | {package: version(package) for package in packages}


def _cpu_name() -> str:
    if CPU_INFO.is_file():
        for line in CPU_INFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
