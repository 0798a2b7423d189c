from __future__ import annotations

from tests.ui.conftest import SeededService
from tests.ui.seed import HOSTILE
from ui.client import StillhouseClient
from ui.text import esc
from ui.views import batches


def test_the_head_counts_and_averages(api: StillhouseClient, seeded: SeededService) -> None:
    batch, page = api.batch(seeded.ids.batch), api.batch_rows(seeded.ids.batch, sort="row", limit=10)
    shown = batches.head(batch, {}, page.data)
    assert "2 of 3 answered" in shown
    assert f"/files/batches/{batch.id}.csv" in shown
    assert "<td>0.375</td><td>1.50</td>" in shown  # (0.5 + 0.25) / 2 and (1 + 2) / 2


def test_rows_are_text_and_a_row_that_waits_says_so(api: StillhouseClient, seeded: SeededService) -> None:
    shown = batches.table(api.batch_rows(seeded.ids.batch, sort="row", limit=10), {})
    assert shown.count(esc(HOSTILE)) == 2 * 2 + 3  # answers of two models, and every row's reference
    assert "<script" not in shown
    assert ">queued<" in shown
    assert "judge: first is better" in shown
