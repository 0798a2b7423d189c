"""Identifiers say what they name and sort by age."""

from __future__ import annotations

import time

from app.core.ids import new_id


def test_ids_sort_by_age() -> None:
    ids = []
    for _ in range(3):
        ids.append(new_id("job"))
        time.sleep(0.002)
    assert ids == sorted(ids)
    assert all(made.startswith("job_") and made == made.lower() for made in ids)
    assert len({len(made) for made in ids}) == 1
