"""Responses come back in their order; half a line, and another run's file, do not count."""

from __future__ import annotations

from pathlib import Path

from worker.distill.response_file import ResponseFile

FIRST = [(3, (1, 2)), (0, (5,))]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = ResponseFile(tmp_path / "responses.jsonl", about="run 1")
    assert file.read() == []
    file.begin([])
    file.add(FIRST)
    file.add([(1, ())])
    assert file.read() == [*FIRST, (1, ())]
    file.begin(FIRST)
    assert file.read() == FIRST
    assert ResponseFile(tmp_path / "responses.jsonl", about="run 2").read() == []


def test_half_a_line_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    file = ResponseFile(path, about="run 1")
    file.begin(FIRST)
    whole = path.read_bytes()
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:-cut])
        assert file.read() == FIRST[: len(file.read())]
        assert len(file.read()) < len(FIRST)
    path.write_bytes(whole + b"[7, [1,")
    assert file.read() == FIRST
