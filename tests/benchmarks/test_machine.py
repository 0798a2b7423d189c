from importlib.metadata import version

import torch

from benchmarks.machine import describe


def test_a_machine_is_described_by_its_processor_threads_and_versions() -> None:
    facts = describe(packages=("torch",))
    assert set(facts) == {"cpu", "cores", "threads", "device", "python", "torch"}
    assert facts["torch"] == version("torch")
    assert facts["threads"] == str(torch.get_num_threads())
    assert int(facts["cores"]) >= 1
    assert facts["cpu"].strip()
