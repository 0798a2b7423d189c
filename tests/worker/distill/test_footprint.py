from __future__ import annotations

import pytest
import torch

from worker.distill.footprint import memory_metrics


def test_the_host_sees_a_tensor_come() -> None:
    before = memory_metrics(torch.device("cpu"))
    held = torch.ones(2**26)
    after = memory_metrics(torch.device("cpu"))
    assert set(after) == {"memory/host_bytes"}
    assert after["memory/host_bytes"] - before["memory/host_bytes"] > 0.5 * held.nbytes


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_device_remembers_the_most_it_held() -> None:
    device = torch.device("cuda")
    held = torch.ones(2**26, device=device)
    num_bytes = held.nbytes
    del held
    assert memory_metrics(device)["memory/device_bytes"] >= num_bytes
