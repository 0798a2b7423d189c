"""A seed draws the same faults again, each kind as often as any other; a disk that is filled is full."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from benchmarks.chaos.disk import FileSizeLimit, SmallDisk, disk
from benchmarks.chaos.faults import FAULTS, drawn
from benchmarks.chaos.house import BACK_ENDS
from benchmarks.chaos.servers import ProgramMissing, servers


@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_a_seed_draws_every_kind_evenly_and_again(back_end: str) -> None:
    kinds = list(drawn(back_end, count=30, chance=random.Random(7)))
    assert kinds == list(drawn(back_end, count=30, chance=random.Random(7)))
    assert kinds != list(drawn(back_end, count=30, chance=random.Random(8)))
    counts = Counter(kinds)
    assert counts.keys() == FAULTS[back_end].keys()
    assert counts.total() == 30
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_small_disk_is_full_and_has_space_again(tmp_path: Path) -> None:
    with disk(tmp_path / "small", lambda: []) as small:
        if not isinstance(small, SmallDisk):
            pytest.skip("this user may not mount")
        small.fill(4096)
        with pytest.raises(OSError, match="No space") as raised:
            (tmp_path / "small/file").write_bytes(bytes(2**20))
        assert raised.value.errno == errno.ENOSPC
        small.clear()
        (tmp_path / "small/file").write_bytes(bytes(2**20))
    assert not os.path.ismount(tmp_path / "small")


WRITES = """
import errno, sys
for line in sys.stdin:
    try:
        open(sys.argv[1], "wb").write(bytes(2**20))
        print("written", flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
"""


def test_a_limit_on_files_acts_on_a_running_process_and_can_be_lifted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITES, str(tmp_path / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        limit = FileSizeLimit(lambda: [psutil.Process(process.pid)])
        for act, expected in ((None, "written"), (lambda: limit.fill(0), "EFBIG"), (limit.clear, "written")):
            if act is not None:
                act()
            process.stdin.write("again\n")
            assert process.stdout.readline().strip() == expected
        process.stdin.close()


def test_a_missing_server_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("benchmarks.chaos.servers.INSTALLED", tmp_path)
    with pytest.raises(ProgramMissing, match="apt-get install postgresql"), servers():
        pass
