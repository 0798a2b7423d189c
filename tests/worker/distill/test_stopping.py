"""Each wish has its own error, and no wish none."""

from __future__ import annotations

import pytest

from app.core.errors import Cancelled, Paused
from worker.distill.stopping import stop_if_asked


def test_each_wish_has_its_error() -> None:
    stop_if_asked(lambda: None, "anywhere")
    with pytest.raises(Cancelled, match="stopped after step 3"):
        stop_if_asked(lambda: "cancel", "after step 3")
    with pytest.raises(Paused, match="paused after step 3"):
        stop_if_asked(lambda: "pause", "after step 3")
