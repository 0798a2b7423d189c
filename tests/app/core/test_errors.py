"""The tree of errors: distinct codes, picklable, drawn as it is."""

from __future__ import annotations

import inspect
import pickle

import pytest

from app.core import errors
from app.core.errors import StillhouseError


def all_errors() -> list[type[StillhouseError]]:
    found = [StillhouseError]
    for error in found:
        found.extend(error.__subclasses__())
    return [error for error in found if error.__module__ == errors.__name__]


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: error.__name__)
def test_errors_cross_process_borders_whole(error: type[StillhouseError]) -> None:
    copy = pickle.loads(pickle.dumps(error("say what to do", "config.field")))
    assert (type(copy), copy.message, copy.field, copy.code) == (error, "say what to do", "config.field", error.code)
    assert str(copy) == "config.field: say what to do"
    assert str(error("no field")) == "no field"


def test_codes_are_distinct() -> None:
    codes = [error.code for error in all_errors()]
    assert len(set(codes)) == len(codes)


def test_the_tree_in_the_docstring_is_complete() -> None:
    drawn = inspect.getdoc(errors) or ""
    for error in all_errors():
        assert error.__name__ in drawn
