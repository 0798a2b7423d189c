"""Responses and states come back bit by bit; what was cut off, altered or is another run's is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from worker.distill.response_file import Written
from worker.distill.state_file import StateFile, check_states, load_states

WIDTH = 3
FIRST: list[Written] = [(2, (1, 2)), (0, (5,))]
SECOND: list[Written] = [(1, ()), (3, (7, 8, 9))]


def states(written: list[Written], dtype: torch.dtype) -> Tensor:
    tokens = sum(len(ids) for _, ids in written)
    return torch.randn(tokens, WIDTH, generator=torch.Generator().manual_seed(tokens)).to(dtype)


def open_file(folder: Path, dtype: torch.dtype, about: str = "run 1") -> StateFile:
    return StateFile(folder, about=about, width=WIDTH, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_added_is_read_by_place(dtype: torch.dtype, tmp_path: Path) -> None:
    file = open_file(tmp_path, dtype)
    file.begin([])
    file.add(FIRST, states(FIRST, dtype))
    file.add(SECOND, states(SECOND, dtype))
    file.finish()
    check_states(tmp_path)
    loaded = load_states(tmp_path, about="run 1", width=WIDTH, dtype=dtype)
    assert [ids for ids, _ in loaded] == [(5,), (), (1, 2), (7, 8, 9)]
    torch.testing.assert_close(torch.cat([loaded[2][1], loaded[0][1]]), states(FIRST, dtype), rtol=0, atol=0)
    torch.testing.assert_close(torch.cat([loaded[1][1], loaded[3][1]]), states(SECOND, dtype), rtol=0, atol=0)
    others: list[dict[str, Any]] = [{"about": "run 2"}, {"width": WIDTH + 1}, {"dtype": torch.float64}]
    for other in others:
        with pytest.raises(ValueError, match="something else"):
            load_states(tmp_path, **{"about": "run 1", "width": WIDTH, "dtype": dtype, **other})


@pytest.mark.parametrize("gone", [["responses.jsonl", "states.bin"], ["states.bin"]])
def test_what_others_remove_after_the_check_is_noticed(gone: list[str], tmp_path: Path) -> None:
    file = open_file(tmp_path, torch.float32)
    file.begin([])
    file.add(FIRST, states(FIRST, torch.float32))
    file.add(SECOND, states(SECOND, torch.float32))
    file.finish()
    check_states(tmp_path)
    for name in gone:
        (tmp_path / name).unlink()
    with pytest.raises(ValueError, match="missing or torn"):
        load_states(tmp_path, about="run 1", width=WIDTH, dtype=torch.float32)


def test_a_killed_run_goes_on_behind_what_is_whole(tmp_path: Path) -> None:
    """Wherever it was cut: between states and lines, in a line, in a state."""
    file = open_file(tmp_path, torch.float32)
    file.begin([])
    file.add(FIRST, states(FIRST, torch.float32))
    raw = (tmp_path / "states.bin").read_bytes()
    (tmp_path / "states.bin").write_bytes(raw + b"half a state")
    again = open_file(tmp_path, torch.float32)
    assert again.read() == FIRST
    again.begin(FIRST[:1])
    again.add(FIRST[1:], states(FIRST, torch.float32)[2:])
    assert (tmp_path / "states.bin").read_bytes() == raw
    (tmp_path / "states.bin").write_bytes(raw[:-1])
    assert open_file(tmp_path, torch.float32).read() == FIRST[:1]
    assert open_file(tmp_path, torch.float32, about="run 2").read() == []


def test_what_was_altered_is_noticed(tmp_path: Path) -> None:
    def make() -> None:
        file = open_file(tmp_path, torch.float32)
        file.begin([])
        file.add(FIRST, states(FIRST, torch.float32))
        file.finish()

    make()
    for name in ("states.bin", "responses.jsonl", "manifest.json"):
        whole = (tmp_path / name).read_bytes()
        for altered in (whole[:-1], bytes([whole[0] ^ 1]) + whole[1:], b""):
            (tmp_path / name).write_bytes(altered)
            with pytest.raises(ValueError, match=r"is not|missing or torn"):
                check_states(tmp_path)
        (tmp_path / name).unlink()
        with pytest.raises(ValueError, match="missing or torn"):
            check_states(tmp_path)
        make()
    check_states(tmp_path)
