"""The service's processes and ports (whole starts and stops are in test_cli.py)."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from app.core.settings import ServiceSettings
from app.service import PortTaken, children, service


def test_four_processes_and_only_the_training_is_niced() -> None:
    processes = {child.name: child for child in children(ServiceSettings(api_port=9001))}
    assert list(processes) == ["api", "ui", "training", "comparing"]
    assert "9001" in processes["api"].command
    assert [name for name, child in processes.items() if child.nice] == ["training"]
    for name in ("training", "comparing"):  # spinning threads of two workers would starve each other
        assert processes[name].environment["OMP_WAIT_POLICY"] == "PASSIVE"


def test_a_training_worker_for_every_gpu() -> None:
    processes = {child.name: child for child in children(ServiceSettings(gpus="0, 3"))}
    assert list(processes) == ["api", "ui", "training-0", "training-3", "comparing"]
    for device in ("0", "3"):
        worker = processes[f"training-{device}"]
        assert worker.environment["CUDA_VISIBLE_DEVICES"] == device
        assert f"training-{device}@%h" in worker.command


@pytest.mark.parametrize("taken", ["api_port", "ui_port"])
def test_a_port_in_use_is_told_with_its_setting_before_anything_starts(tmp_path: Path, taken: str) -> None:
    with socket.socket() as other, socket.socket() as free:
        other.bind(("127.0.0.1", 0))
        other.listen()
        free.bind(("127.0.0.1", 0))
        ports = {"api_port": free.getsockname()[1], "ui_port": free.getsockname()[1]}
        free.close()
        settings = ServiceSettings(home=tmp_path, **{**ports, taken: other.getsockname()[1]})
        with pytest.raises(PortTaken, match=f"STILLHOUSE_{taken.upper()}"), service(settings):
            pass
    assert list(tmp_path.iterdir()) == []
