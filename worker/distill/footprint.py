"""How much memory a run holds, by metric name.

Knows this process and its device. Does not know what the memory is used for; `app.memory` estimates that beforehand.
"""

from __future__ import annotations

import psutil
import torch


def memory_metrics(device: torch.device) -> dict[str, float]:
    """`memory/host_bytes`: resident now. `memory/device_bytes`: the most that tensors have held on a GPU so far."""
    metrics = {"memory/host_bytes": float(psutil.Process().memory_info().rss)}
    if device.type == "cuda":
        metrics["memory/device_bytes"] = float(torch.cuda.max_memory_allocated(device))
    return metrics
