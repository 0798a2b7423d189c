"""The page in a real Chromium, on the whole running service with a tiny real model: what a person does, done.

Everything here goes through the page; the API is asked only to prepare and to look behind it.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import psutil
import pytest
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from tests.running_service import RunningService, running_service
from tests.waiting import until
from ui.screenshots import take_all

pytestmark = [pytest.mark.browser, pytest.mark.slow]

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--no-first-run"]
HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'> [link](javascript:alert(1))"
LONG_MS = 120_000  # nothing here is about speed, and the machine may be busy
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def house(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """API, page, training worker and comparing worker."""
    with running_service(tmp_path_factory.mktemp("home"), may_be_killed=True) as running:
        yield running


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium, args=FLAGS)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV of prompts and responses, more than are held out by default."""
    file = tmp_path_factory.mktemp("rows") / "rows.csv"
    lines = [f"say the word {word} {i},{word} {word}" for i in range(12) for word in ("dog", "bird", "house", "tree")]
    file.write_text("\n".join(["prompt,response", *lines]))
    return file


@pytest.fixture
def open_page(house: RunningService, browser: Browser) -> Iterator[Callable[[str], Page]]:
    """Opens the page at a query string, each time in a browser of its own (no shared storage)."""
    contexts = []
    outside: list[str] = []

    def open_at(query: str) -> Page:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: outside.append(request.url) if leaves(request.url) else None)
        asked: set[Request] = set()
        page.on("request", lambda request: asked.add(request))
        page.on("requestfinished", lambda request: asked.discard(request))
        page.on("requestfailed", lambda request: asked.discard(request))
        page.goto(f"http://127.0.0.1:{house.settings.ui_port}/{query}")
        settle(page, asked)
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert outside == []


def settle(page: Page, asked: set[Request]) -> None:
    """Waits until what the page asked for while it opened has come: nobody types sooner than that. One request stays
    open, by which the page hears that its server is there."""
    expect(page.get_by_role("tab", name="Progress")).to_be_visible()
    page.wait_for_function("stillhouse.addressRead")
    until(lambda: len(asked) <= 1, timeout_s=60, tick=lambda: page.wait_for_timeout(200))


def leaves(url: str) -> bool:
    return urlparse(url).scheme in ("http", "https") and urlparse(url).hostname != "127.0.0.1"


def in_address(page: Page, name: str) -> str:
    return parse_qs(urlparse(page.url).query).get(name, [""])[0]


def job_json(page: Page) -> Any:
    """The editor's text. CodeMirror only keeps the lines on the screen, so this scrolls nothing away in short jobs."""
    return json.loads("\n".join(page.locator("#job-json .cm-line").all_inner_texts()))


def fill_form(page: Page, *, name: str, teacher: Path, rows: Path, layers: int, steps: int) -> None:
    page.locator("#f-name textarea, #f-name input").fill(name)
    teacher_box = page.locator("#f-teacher input")
    teacher_box.fill(str(teacher))
    teacher_box.press("Enter")
    page.locator("#f-layers input").fill(str(layers))
    with page.expect_file_chooser() as chooser:
        page.locator("#f-file").click()
    chooser.value.set_files(rows)
    expect(page.locator("#data-note")).to_contain_text("48 rows, 48 with a response")
    page.locator("#f-max_new_tokens input").fill("8")
    page.locator("#f-student_fraction input").fill("0.6")
    page.locator("#f-max_steps input").fill(str(steps))
    page.locator("#f-batch_size input").fill("2")


def start_job(house: RunningService, teacher: Path, rows: Path, *, steps: int, name: str = "by the API") -> str:
    config = {
        "teacher": {"model": str(teacher)},
        "student": {"kind": "from_teacher", "layers": 2},
        "data": {"kind": "dataset", "dataset_id": house.upload(rows), "dev_rows": 4, "max_response_tokens": 16},
        "sampling": {"kind": "adaptive_off_policy", "phi_start": 0.5, "max_new_tokens": 8},
        "training": {"max_steps": steps, "batch_size": 2},
    }
    return house.post("/v1/jobs", json={"name": name, "config": config})["id"]


def test_submit_watch_refresh_and_compare(
    house: RunningService,
    browser: Browser,
    open_page: Callable[[str], Page],
    tiny_teacher: Path,
    rows: Path,
    tmp_path: Path,
) -> None:
    page = open_page("")
    fill_form(page, name="by the form", teacher=tiny_teacher, rows=rows, layers=2, steps=150)
    page.locator("#job-check").click()
    expect(page.locator("#job-result")).to_contain_text("Ready to run", timeout=LONG_MS)
    page.locator("#job-submit").click()

    expect(page.locator("#job-head h2")).to_have_text("by the form", timeout=LONG_MS)
    expect(page).to_have_url(re.compile("tab=progress"))
    expect(page).to_have_url(re.compile("job=job_"))
    job_id = in_address(page, "job")
    stored = house.get(f"/v1/jobs/{job_id}")["config"]
    assert (stored["training"]["max_steps"], stored["sampling"]["student_fraction"]) == (150, 0.6)
    expect(page.locator("#charts")).to_contain_text("Training losses", timeout=LONG_MS)

    page.reload()
    expect(page.locator("#job-head h2")).to_have_text("by the form")
    other = open_page(f"?job={job_id}&tab=progress")
    expect(other.locator("#job-head h2")).to_have_text("by the form")
    for one in (page, other):
        expect(one.locator("#job-head .sh-chip")).to_have_text("succeeded", timeout=LONG_MS)
        for chart in ("Held-out divergence", "DAC-KL bounds", "DAC-KL kept mass", "SCRG corrections", "Throughput"):
            expect(one.locator("#charts")).to_contain_text(chart)
        expect(one.locator("#charts .sh-chart").first.locator(".scatterlayer .trace")).to_have_count(4)
    page.get_by_role("tab", name="Samples").click()
    expect(page.locator("#answers .sh-sample").first).to_be_visible()

    compare(page, house, job_id)
    take_all(browser, f"http://127.0.0.1:{house.settings.ui_port}", tmp_path, job_id)
    assert len(list(tmp_path.glob("*.png"))) == 10


def compare(page: Page, house: RunningService, job_id: str) -> None:
    page.get_by_role("tab", name="Compare").click()
    expect(page.locator("#compare-models .token")).to_have_count(3)
    page.locator("#compare-prompt textarea").fill("the small brown dog")
    page.locator("#compare-go").click()
    expect(page.locator("#panes .sh-numbers")).to_have_count(3, timeout=LONG_MS)
    expect(page.locator("#panes [aria-busy]")).to_have_count(0, timeout=LONG_MS)
    kinds = page.locator("#panes header span").all_inner_texts()
    assert kinds == ["Teacher", "Untrained student", "Student"]
    hashes = page.locator("#panes .sh-numbers code").all_inner_texts()
    assert len(set(hashes)) == 3
    student = house.get(f"/v1/models/{house.get(f'/v1/jobs/{job_id}')['student_id']}")
    assert student["weights_sha256"].startswith(hashes[2])
    texts = page.locator("#panes .sh-answer").all_inner_texts()

    page.reload()
    expect(page.locator("#panes .sh-numbers")).to_have_count(3)
    assert page.locator("#panes .sh-answer").all_inner_texts() == texts
    expect(page.locator("#compare-prompt textarea")).to_have_value("the small brown dog")


def test_form_and_json_follow_each_other(open_page: Callable[[str], Page]) -> None:
    page = open_page("")
    page.locator("#f-max_steps input").fill("77")
    expect(page.locator("#job-json")).to_contain_text('"max_steps": 77')
    page.get_by_role("radio", name=re.compile("^kd")).check()
    expect(page.locator("#job-json")).to_contain_text('"forward_kl"')
    expect(page.locator("#f-weight-forward_kl input")).to_have_value("1")
    expect(page.locator("#f-weight-span input")).to_have_value("0")
    expect(page.locator("#f-student_fraction")).to_be_hidden()
    assert job_json(page)["config"]["training"]["max_steps"] == 77

    page.locator("#job-json .cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text('{"name": "typed", "config": {"recipe": "sft", "training": {"max_steps": 5}}')
    expect(page.locator(".sh-wrong-note")).to_contain_text("not complete yet")
    page.keyboard.insert_text("}")
    expect(page.locator("#f-name textarea, #f-name input")).to_have_value("typed")
    expect(page.locator("#f-max_steps input")).to_have_value("5")
    expect(page.locator("#f-weight-sft input")).to_have_value("1")


def test_a_refusal_is_shown_at_its_field(
    house: RunningService, open_page: Callable[[str], Page], tiny_teacher: Path, rows: Path
) -> None:
    page = open_page("")
    fill_form(page, name="too deep", teacher=tiny_teacher, rows=rows, layers=99, steps=0)
    page.locator("#job-submit").click()
    expect(page.locator("#job-result")).to_contain_text("config.training.max_steps")
    expect(page.locator("#f-max_steps.sh-wrong, #f-max_steps .sh-wrong")).to_contain_text("greater than or equal to 1")
    page.locator("#f-max_steps input").fill("4")
    expect(page.locator("#job-json")).to_contain_text('"max_steps": 4')
    page.locator("#job-submit").click()
    expect(page.locator("#job-result")).to_contain_text("config.student.layers", timeout=LONG_MS)
    expect(page.locator("#f-layers.sh-wrong, #f-layers .sh-wrong")).to_contain_text("4")
    expect(page.locator("#f-max_steps.sh-wrong, #f-max_steps .sh-wrong")).to_have_count(0)
    assert in_address(page, "job") == ""
    assert "too deep" not in [job["name"] for job in house.get("/v1/jobs", limit=20)["data"]]


def test_pause_resume_and_cancel_from_the_page(
    house: RunningService, open_page: Callable[[str], Page], tiny_teacher: Path, rows: Path
) -> None:
    job_id = start_job(house, tiny_teacher, rows, steps=100_000, name=HOSTILE)
    page = open_page("?tab=jobs")
    page.locator(f"tr[data-job={job_id}] a").click()
    expect(page.locator("#job-head h2")).to_have_text(HOSTILE)
    expect(page).to_have_url(re.compile(f"job={job_id}"))
    chip, buttons = page.locator("#job-head .sh-chip"), page.locator("#job-head .sh-actions")
    expect(page.locator("#job-head .sh-tile b").first).to_have_text(re.compile(r"[1-9]"), timeout=LONG_MS)
    buttons.get_by_text("Pause").click()
    expect(chip).to_have_text("paused", timeout=LONG_MS)
    reached = house.get(f"/v1/jobs/{job_id}")["step"]
    buttons.get_by_text("Resume").click()
    house.until(lambda: house.get(f"/v1/jobs/{job_id}")["step"] > reached)
    expect(page.locator("#job-detail")).to_be_visible()
    buttons.get_by_text("Cancel").click()
    page.get_by_role("button", name="Leave it").click()
    expect(chip).to_have_text("running", timeout=LONG_MS)
    buttons.get_by_text("Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(chip).to_have_text("cancelled", timeout=LONG_MS)
    page.get_by_role("tab", name="Events").click()
    expect(page.locator("#event-log")).to_contain_text("Goes on from the checkpoint", timeout=LONG_MS)
    assert page.evaluate("window.hacked") is None

    buttons.get_by_text("Clone").click()
    expect(page.locator("#f-name textarea, #f-name input")).to_have_value(f"{HOSTILE} (copy)")
    page.get_by_role("tab", name="Jobs", exact=True).click()
    page.locator(f"tr[data-job={job_id}]").get_by_text("Delete").click()
    page.get_by_role("button", name="Delete it").click()
    expect(page.locator(f"tr[data-job={job_id}]")).to_have_count(0, timeout=LONG_MS)
    assert house.http.get(f"/v1/jobs/{job_id}").status_code == 404


def test_a_service_that_is_away_gets_a_banner_and_comes_back(
    house: RunningService, open_page: Callable[[str], Page]
) -> None:
    page = open_page("?tab=jobs")
    expect(page.locator("#jobs")).to_contain_text("ob")
    psutil.Process(house.supervisor.pids()["api"]).send_signal(signal.SIGKILL)
    expect(page.locator("#banner")).to_contain_text("does not answer", timeout=LONG_MS)
    expect(page.locator("body")).not_to_contain_text("Traceback")
    house.until(lambda: house.supervisor.pids().get("api") and answers(house))
    expect(page.locator("#banner .sh-banner")).to_have_count(0, timeout=LONG_MS)


def test_a_page_whose_own_server_was_restarted_goes_on_by_itself(
    house: RunningService, open_page: Callable[[str], Page], tiny_teacher: Path, rows: Path
) -> None:
    page = open_page("?tab=jobs")
    old = house.supervisor.pids()["ui"]
    psutil.Process(old).send_signal(signal.SIGKILL)
    house.until(lambda: house.supervisor.pids().get("ui", old) != old)
    job_id = start_job(house, tiny_teacher, rows, steps=2, name="after the restart")
    expect(page.locator(f"tr[data-job={job_id}]")).to_contain_text("after the restart", timeout=LONG_MS)


def answers(house: RunningService) -> bool:
    try:
        return house.http.get("/healthz").is_success
    except OSError:
        return False
    except Exception:  # httpx' own tree, while nothing listens
        return False
