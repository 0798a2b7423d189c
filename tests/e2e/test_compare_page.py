"""Compare and Models in a real Chromium on the whole running service, with tiny models that write for as long as asked.

One service and one small job for all tests. Who judges a batch is tested with the worker (tests/worker/test_judging).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.running_service import RunningService, running_service
from tests.tiny_models import make_tiny_model, never_ending

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
LONG_MS = 120_000
PROMPT = "the small brown dog"


@pytest.fixture(scope="module")
def house(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(scope="module")
def dataset(house: RunningService, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("rows") / "rows.csv"
    file.write_text("prompt,response\n" + "\n".join(f"say {i},{word} {word}" for i in range(6) for word in ("a", "b")))
    return house.upload(file)


@pytest.fixture(scope="module")
def models(house: RunningService, dataset: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Teacher and student of a job that trained with the alpaca template; their greedy answers never end."""
    teacher = never_ending(make_tiny_model(tmp_path_factory.mktemp("teacher"), seed=1, context=4200))
    config = {
        "teacher": {"model": str(teacher)},
        "student": {"kind": "from_teacher", "layers": 1},
        "data": {
            "kind": "dataset",
            "dataset_id": dataset,
            "dev_rows": 2,
            "template": "alpaca",
            "max_response_tokens": 8,
        },
        "sampling": {"kind": "ground_truth", "max_new_tokens": 4},
        "training": {"max_steps": 1, "batch_size": 2, "learning_rate": 1e-9},
    }
    job = house.wait_for_end(
        house.post("/v1/jobs", json={"name": "<b>pair</b>", "config": config})["id"], timeout_s=240
    )
    assert job["status"] == "succeeded", job
    return [job["teacher_id"], job["student_id"]]


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium, args=FLAGS)


@pytest.fixture
def open_page(house: RunningService, browser: Browser) -> Iterator[Callable[[str], Page]]:
    contexts = []

    def open_at(query: str) -> Page:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.goto(f"http://127.0.0.1:{house.settings.ui_port}/{query}")
        page.wait_for_function("window.stillhouse && stillhouse.addressRead")
        page.wait_for_timeout(1000)
        return page

    yield open_at
    for context in contexts:
        context.close()


def ask(page: Page, *, tokens: int) -> None:
    """From the student's card to the two answers."""
    page.get_by_role("button", name="Compare with its teacher").click()
    expect(page.locator("#compare-models .token")).to_have_count(2, timeout=LONG_MS)
    page.locator("#compare-prompt textarea").fill(PROMPT)
    page.get_by_label("New tokens, at most").first.fill(str(tokens))
    page.locator("#compare-go").click()


def test_watch_stop_and_read_token_by_token(
    house: RunningService, open_page: Callable[[str], Page], models: list[str]
) -> None:
    page = open_page("?tab=models")
    expect(page.locator("#models h3")).to_have_text("<b>pair</b>")
    ask(page, tokens=4000)
    expect(page.locator("#panes [aria-busy]")).to_have_count(2, timeout=LONG_MS)  # both write
    page.wait_for_function(
        "[...document.querySelectorAll('#panes .sh-answer')].every((one) => one.innerText.length > 20)"
    )
    page.locator("#compare-stop").click()
    expect(page.locator("#panes .sh-note", has_text="Stopped.")).to_have_count(2, timeout=LONG_MS)
    comparison = house.get(f"/v1/comparisons/{page.url.split('cmp=')[1].split('&')[0]}")
    assert comparison["status"] == "cancelled"
    assert [answer["template"] for answer in comparison["answers"]] == ["alpaca", "alpaca"]
    shown = page.locator("#panes .sh-numbers code").evaluate_all("(all) => all.map((one) => one.title)")
    assert shown == [answer["weights_sha256"] for answer in comparison["answers"]]
    assert shown[1] == house.get(f"/v1/models/{models[1]}")["weights_sha256"]

    page.get_by_role("button", name="Where they part, token by token").click()
    page.locator("#divergence-go").click()
    tokens = page.locator("#reading [role=option]")
    expect(tokens.first).to_be_visible(timeout=LONG_MS)
    text = page.locator("#reading .sh-tokens").evaluate("(one) => one.textContent")
    assert text == comparison["answers"][1]["text"]
    page.get_by_role("button", name="Jump to the largest KL").click()
    detail = page.locator("#reading .sh-detail")
    expect(detail.locator("tr")).to_have_count(10)  # both top-5
    expect(page.locator("#reading [aria-selected=true]")).to_be_focused()
    before = detail.inner_text()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Home")
    expect(detail).to_contain_text("Token 1:")
    tokens.nth(1).hover()
    expect(detail).to_contain_text("Token 2:")
    assert detail.inner_text() != before

    page.reload()
    expect(page.locator("#panes .sh-note", has_text="Stopped.")).to_have_count(2, timeout=LONG_MS)
    expect(page.locator("#compare-prompt textarea")).to_have_value(PROMPT)


def test_a_blind_vote_is_counted_and_the_conversation_goes_on(
    house: RunningService, open_page: Callable[[str], Page], models: list[str]
) -> None:
    page = open_page("?tab=models")
    page.get_by_role("button", name="Compare with its teacher").click()
    expect(page.locator("#compare-models .token")).to_have_count(2, timeout=LONG_MS)
    page.get_by_label("New tokens, at most").first.fill("6")
    page.get_by_label("Blind").check()
    page.locator("#compare-go").click()
    page.locator("#vote-b").wait_for(timeout=LONG_MS)
    assert page.locator("#panes h3").all_inner_texts() == ["A", "B"]
    assert page.locator("#panes .sh-numbers code").count() == 0
    page.locator("#vote-b").click()
    expect(page.locator("#panes .sh-callout")).to_contain_text("You said: B is better", timeout=LONG_MS)
    assert sorted(page.locator("#panes header span").all_inner_texts()) == ["Student", "Teacher"]
    (pair,) = house.get("/v1/votes/summary")["data"]
    assert pair["wins_a"] + pair["wins_b"] == 1
    page.get_by_role("button", name="Blind votes by pair").click()
    expect(page.locator("#votes")).to_contain_text("Student: <b>pair</b>")

    page.locator("#compare-prompt textarea").fill("and then")
    page.locator("#compare-next").click()
    expect(page.locator("#panes .sh-turns")).to_have_count(2, timeout=LONG_MS)
    expect(page.locator("#panes .sh-turns .user dd").last).to_have_text("and then")
    expect(page.locator("#panes .sh-note", has_text="Cut at")).to_have_count(2, timeout=LONG_MS)


def test_a_batch_runs_behind_a_comparison_and_is_exported(
    house: RunningService, open_page: Callable[[str], Page], models: list[str], dataset: str
) -> None:
    page = open_page("?tab=models")
    page.get_by_role("button", name="Compare with its teacher").click()
    expect(page.locator("#compare-models .token")).to_have_count(2, timeout=LONG_MS)
    page.get_by_role("button", name="A data set through the models").click()
    expect(page.locator("#batch-dataset input")).not_to_have_value("", timeout=LONG_MS)
    page.get_by_label("Rows, at most").fill("4")
    page.locator("#batch").get_by_label("New tokens, at most").fill("4")
    page.locator("#batch-go").click()
    expect(page.locator("#batch-head")).to_contain_text("4 of 4 answered", timeout=LONG_MS)
    expect(page.locator("#batch-rows tbody tr")).to_have_count(8, timeout=LONG_MS)
    with page.expect_download() as download:
        page.locator("#batch-head").get_by_role("link", name="CSV").click()
    with open(download.value.path(), newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["model_id"] for row in rows] == models * 4
    assert all(row["kl"] for row in rows if row["model_id"] == models[1])
    assert all(row["rouge_l"] for row in rows)
    page.reload()
    expect(page.locator("#batch-head")).to_contain_text("4 of 4 answered", timeout=LONG_MS)


def test_completions_are_openais_for_a_real_model(house: RunningService, models: list[str]) -> None:
    """Whole and streamed say the same; a client that hangs up stops the writing."""
    body = {"model": models[1], "messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 12}
    whole = house.http.post("/v1/chat/completions", json=body, timeout=120).raise_for_status().json()
    assert whole["usage"]["completion_tokens"] == 12
    assert whole["choices"][0]["finish_reason"] == "length"
    with house.http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}, timeout=120) as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    deltas = [json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines[:-1]]
    assert "".join(deltas) == whole["choices"][0]["message"]["content"]

    with (
        httpx.Client(base_url=house.settings.resolved_api_url, trust_env=False, timeout=120) as client,
        client.stream("POST", "/v1/chat/completions", json=body | {"stream": True, "max_tokens": 4000}) as stream,
    ):
        chunks = (json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line.startswith("data: {"))
        hung_up = next(chunk["id"] for chunk in chunks if chunk["choices"][0]["delta"].get("content"))
    house.until(lambda: house.get(f"/v1/comparisons/{hung_up}")["status"] == "cancelled", timeout_s=60)


def test_a_student_is_downloaded_whole(
    house: RunningService, open_page: Callable[[str], Page], models: list[str]
) -> None:
    page = open_page("?tab=models")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    with house.http.stream("GET", f"/v1/models/{models[1]}/archive") as archive:
        assert Path(download.value.path()).stat().st_size == int(archive.headers["content-length"])
    assert download.value.suggested_filename == f"{models[1]}.tar"
