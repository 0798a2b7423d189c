from __future__ import annotations

from tests.ui.conftest import SeededService
from ui.client import StillhouseClient
from ui.tabs import batch


def test_the_newest_data_set_is_chosen_and_a_choice_stays(api: StillhouseClient, seeded: SeededService) -> None:
    found = batch.datasets(api, None)
    assert found["dataset"]["value"] == seeded.ids.dataset
    assert seeded.ids.batch in found["earlier"]
    assert batch.datasets(api, "ds_gone")["dataset"]["value"] == seeded.ids.dataset


def test_what_is_missing_is_said_without_asking(nobody: StillhouseClient) -> None:
    assert "data set" in batch.start(nobody, None, ["a"], 5, 8, judge=False)["note"]
    assert "models" in batch.start(nobody, "ds_1", [], 5, 8, judge=False)["note"]


def test_a_batch_starts_is_shown_and_stops(api: StillhouseClient, seeded: SeededService) -> None:
    ids = list(api.batch(seeded.ids.batch).request.model_ids)
    started = batch.start(api, seeded.ids.dataset, ids, 2.0, 8.0, judge=False)
    shown = batch.show(api, started["id"], "row")
    assert shown["timer"].active
    assert shown["stop"].visible
    assert "0 of 2 answered" in shown["head"]
    batch.cancel(api, started["id"])
    stopped = batch.show(api, started["id"], "row")
    assert not stopped["timer"].active
    assert "could not be cancelled" in batch.cancel(api, started["id"])["note"]


def test_a_judge_that_is_not_configured_is_refused_at_its_field(api: StillhouseClient, seeded: SeededService) -> None:
    ids = list(api.batch(seeded.ids.batch).request.model_ids)
    assert "<code>judge</code>" in batch.start(api, seeded.ids.dataset, ids, 2, 8, judge=True)["note"]


def test_the_order_puts_the_worst_first(api: StillhouseClient, seeded: SeededService) -> None:
    by_row, by_kl = (batch.show(api, seeded.ids.batch, sort)["rows"] for sort in ("row", "kl"))
    assert by_row.index("row 0") < by_row.index("row 1")
    assert by_kl.index("row 1") < by_kl.index("row 0") < by_kl.index("row 2")


def test_an_unknown_batch_and_an_api_that_is_away(api: StillhouseClient, nobody: StillhouseClient) -> None:
    assert "cannot be shown" in batch.show(api, "bat_none", "row")["head"]
    assert set(batch.show(nobody, "bat_1", "row")) == {"banner"}
