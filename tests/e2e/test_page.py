"""The page in a real Chromium over a seeded database: what does not need a model to train.

Sizes, hostile texts, curves that go on, timers that rest, accessibility. The main job is in test_browser.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from app.core.db import events
from app.core.db.session import make_engine, make_sessions
from app.core.settings import ServiceSettings
from tests.running_service import free_port
from tests.ui.conftest import serving
from tests.ui.seed import HOSTILE, HUGE, Seeded, seed
from tests.ui.seed_events import step_events
from tests.waiting import until
from ui.main import serve

pytestmark = pytest.mark.browser
SIZES = {"desktop": {"width": 1440, "height": 900}, "phone": {"width": 390, "height": 844}}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


PATIENCE_MS = 150_000  # nothing here is about speed, and the machine may be busy
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def ids(home: Path) -> Seeded:
    return seed(home)


@pytest.fixture(scope="module")
def url(chromium: str, home: Path, ids: Seeded) -> Iterator[str]:
    with serving(home) as api_url:
        settings = ServiceSettings(home=home, api_url=api_url, ui_port=free_port())
        blocks = serve(settings, block=False)
        yield f"http://127.0.0.1:{settings.ui_port}"
        blocks.close(verbose=False)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium, args=FLAGS)


@pytest.fixture(params=list(SIZES))
def size(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_page(url: str, browser: Browser) -> Iterator[Callable[..., Page]]:
    contexts = []

    def open_at(query: str, *, size: str = "desktop", dark: bool = False) -> Page:
        scheme = "dark" if dark else "light"
        context = browser.new_context(viewport=SIZES[size], color_scheme=scheme)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{url}/{query}")
        page.wait_for_function("window.stillhouse && stillhouse.addressRead")
        return page

    yield open_at
    for context in contexts:
        context.close()


TABS = ("New job", "Jobs", "Progress", "Samples", "Events", "Description", "Compare", "Models", "Curves")
# Elements whose own text is wider than they are, where that can be seen: an ellipsis or a scroll bar is meant.
CLIPPED = """() => [...document.querySelectorAll('.gradio-container *')].filter((one) => {
  const style = getComputedStyle(one);
  const hasText = [...one.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
  return hasText && one.offsetParent && one.clientWidth > 1 && !one.closest('svg, .cm-editor, .sh-hidden')
    && ['hidden', 'clip'].includes(style.overflowX) && style.textOverflow !== 'ellipsis'
    && one.scrollWidth > one.clientWidth + 1;
}).map((one) => one.outerHTML.slice(0, 200))"""


def choose(page: Page, tab: str) -> None:
    """Opens a tab; those inside Progress need that one first."""
    wanted = page.get_by_role("tab", name=tab, exact=True)
    if tab in ("Samples", "Events", "Description", "Curves") and not wanted.is_visible():
        choose(page, "Progress")
    wanted.click()
    page.wait_for_timeout(300)


def test_nothing_is_wider_than_the_screen_or_cut_off(open_page: Callable[..., Page], ids: Seeded, size: str) -> None:
    page = open_page(f"?tab=progress&job={ids.hostile}&with={ids.running}&cmp={ids.comparison}", size=size)
    page.locator("#charts .sh-chart").first.scroll_into_view_if_needed()
    expect(page.locator("#charts .main-svg").first).to_be_visible()
    for tab in TABS:
        choose(page, tab)
        wide = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        scrolled, shown = page.evaluate(wide)
        assert scrolled <= shown, tab
        assert page.evaluate(CLIPPED) == [], tab


def test_a_long_choice_ends_before_the_arrow_of_its_list(
    open_page: Callable[..., Page], ids: Seeded, size: str
) -> None:
    page = open_page(f"?tab=compare&cmp={ids.comparison}", size=size)
    page.get_by_role("button", name="Where they part, token by token").click()
    expect(page.locator("#divergence-of .icon-wrap")).to_be_visible()
    overlaps = """[...document.querySelectorAll('.secondary-wrap')].filter((one) => {
      const arrow = one.querySelector('.icon-wrap'), box = one.querySelector('input');
      return arrow?.checkVisibility() && box.checkVisibility()
        && box.getBoundingClientRect().right - parseFloat(getComputedStyle(box).paddingRight)
          > arrow.getBoundingClientRect().left;
    }).map((one) => one.closest('[id]').id)"""
    assert page.evaluate(overlaps) == []


def test_on_a_phone_what_was_asked_for_comes_into_view(open_page: Callable[..., Page], ids: Seeded) -> None:
    page = open_page(f"?tab=compare&job={ids.succeeded}", size="phone")
    expect(page.locator("#compare-models .token")).to_have_count(3)
    page.locator("#compare-go").click()
    expect(page.locator("#panes .sh-pane").first).to_contain_text("Waiting for a worker")
    expect(page.locator("#panes .sh-pane").first).to_be_in_viewport()


def test_on_a_phone_the_answers_of_a_batch_are_on_the_screen(open_page: Callable[..., Page], ids: Seeded) -> None:
    page = open_page(f"?tab=compare&batch={ids.batch}", size="phone")
    answers = page.locator("#batch-rows td.c-text")
    expect(answers.first).to_be_visible()  # a batch in the address opens its fold
    expect(answers).to_have_count(4)
    for box in answers.evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().toJSON())"):
        assert 0 <= box["left"] < box["right"] <= SIZES["phone"]["width"]
        assert box["width"] > SIZES["phone"]["width"] / 2


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_on_any_tab(open_page: Callable[..., Page], ids: Seeded, dark: bool) -> None:
    page = open_page(f"?tab=progress&job={ids.running}&with={ids.succeeded}&cmp={ids.comparison}", dark=dark)
    expect(page.locator("#charts .main-svg").first).to_be_visible()
    found = {}
    for tab in TABS:
        choose(page, tab)
        for broken in Axe().run(page).response["violations"]:
            found[tab, broken["id"]] = [node["html"][:200] for node in broken["nodes"][:3]]
    assert found == {}


def test_a_resting_page_holds_at_most_one_connection(open_page: Callable[..., Page], ids: Seeded) -> None:
    page = open_page("?tab=jobs")
    page.reload()
    running: set[Request] = set()
    page.on("request", lambda request: running.add(request))
    page.on("requestfinished", lambda request: running.discard(request))
    page.on("requestfailed", lambda request: running.discard(request))
    page.reload()
    page.wait_for_function("window.stillhouse && stillhouse.addressRead")
    for tab in ("New job", "Jobs", "Progress", "Compare", "Models"):
        choose(page, tab)
        until(lambda: len(running) <= 1, tick=lambda: page.wait_for_timeout(100))


def test_the_list_is_read_only_while_it_is_seen(open_page: Callable[..., Page], ids: Seeded) -> None:
    """What nobody sees costs the service nothing; who comes back sees it as it is now."""
    page = open_page(f"?tab=progress&job={ids.running}")
    expect(page.locator("#charts .main-svg").first).to_be_visible()
    with page.expect_response(lambda answer: "run/predict" in answer.url, timeout=PATIENCE_MS):
        page.wait_for_timeout(6000)  # one of its ticks, at least, is among these
    assert page.locator("tr[data-job]").count() == 0
    choose(page, "Jobs")
    expect(page.locator(f"tr[data-job={ids.running}]")).to_be_visible()


def test_the_list_keeps_focus_and_open_dialogs_while_it_is_read_again(
    open_page: Callable[..., Page], ids: Seeded
) -> None:
    page = open_page("?tab=jobs")
    cancel = page.locator(f"tr[data-job={ids.running}] button.cancel")
    cancel.focus()
    with page.expect_response(lambda answer: "run/predict" in answer.url):
        pass
    page.wait_for_timeout(500)
    expect(cancel).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Cancel this job?")).to_be_visible()
    expect(page.get_by_role("button", name="Leave it")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator(f"tr[data-job={ids.running}] .sh-chip")).to_have_text("running")


def test_search_filter_and_their_address(open_page: Callable[..., Page], ids: Seeded) -> None:
    page = open_page("?tab=jobs")
    expect(page.locator("#jobs tr[data-job]")).to_have_count(5)
    page.locator("#jobs-q input, #jobs-q textarea").fill("12 layers")
    expect(page.locator("#jobs tr[data-job]")).to_have_count(1)
    page.wait_for_url("**q=12+layers**")
    page.reload()
    expect(page.locator("#jobs tr[data-job]")).to_have_count(1)
    expect(page.locator("#jobs-q input, #jobs-q textarea")).to_have_value("12 layers")
    page.locator("#jobs-q input, #jobs-q textarea").fill("no such job")
    expect(page.locator("#jobs")).to_contain_text("No job matches.")


def test_a_chart_is_saved_as_csv_and_png_and_smoothing_is_only_for_the_eye(
    open_page: Callable[..., Page], ids: Seeded
) -> None:
    page = open_page(f"?tab=progress&job={ids.succeeded}&with={ids.failed}")
    expect(page.locator("#charts .main-svg").first).to_be_visible()
    expect(page.locator("#config-diff")).to_contain_text("training.batch_size")
    page.locator("#smoothing input[type=number]").fill("0.9")
    page.keyboard.press("Tab")
    page.wait_for_function("document.querySelector('.js-plotly-plot').data.some((trace) => trace.opacity < 1)")
    with page.expect_download() as csv:
        page.get_by_role("button", name="Download as CSV: Training losses").click()
    assert csv.value.suggested_filename == f"{ids.succeeded}-loss.csv"
    head, *lines = Path(csv.value.path()).read_text().splitlines()
    assert head.startswith(f'"step","loss/total@{ids.succeeded}"')
    assert len(lines) == 100
    measured = {line.split(",")[0]: float(line.split(",")[1]) for line in lines}
    shown = page.evaluate("document.querySelector('.js-plotly-plot').data[0].y")
    assert list(measured.values()) == shown
    with page.expect_download() as png:
        page.get_by_role("button", name="Download as PNG: Training losses").click()
    assert Path(png.value.path()).read_bytes().startswith(b"\x89PNG")


def test_hostile_names_prompts_and_answers_stay_text(open_page: Callable[..., Page], ids: Seeded) -> None:
    page = open_page(f"?tab=progress&job={ids.hostile}&cmp={ids.comparison}")
    expect(page.locator("#job-head h2")).to_have_text(HOSTILE)
    page.get_by_role("tab", name="Samples").click()
    expect(page.locator("#answers h4").last).to_have_text(HOSTILE)
    expect(page.locator("#answers dd").first).to_contain_text("the the sky sky")
    expect(page.locator("#answers .sh-sample").last.locator("dd").first).to_have_text(HOSTILE + HUGE)
    page.get_by_role("tab", name="Compare").click()
    expect(page.locator("#panes .sh-answer").nth(1)).to_have_text(HOSTILE * 3)
    assert page.locator("#panes script, #panes img, #panes .sh-answer a, #answers img, #job-head img").count() == 0
    assert page.evaluate("window.hacked") is None


def test_curves_go_on_in_place_and_keep_the_readers_zoom(
    open_page: Callable[..., Page], home: Path, ids: Seeded
) -> None:
    page = open_page(f"?tab=progress&job={ids.running}")
    expect(page.locator("#charts .main-svg").first).to_be_visible()
    page.evaluate(
        "() => { const plot = document.querySelector('.js-plotly-plot'); plot.mine = true;"
        "return Plotly.relayout(plot, {'xaxis.range[0]': 10, 'xaxis.range[1]': 20}); }"
    )
    engine = make_engine(ServiceSettings(home=home).resolved_database_url)
    with make_sessions(engine).begin() as session:
        told = [event for step in (47, 48) for event in step_events(step, Random(step))]
        events.append(session, job_id=ids.running, attempt=1, events=told, now=datetime.now(UTC))
    engine.dispose()
    expect(page.locator("#job-head .sh-tile b").first).to_have_text("48")
    page.wait_for_function("document.querySelector('.js-plotly-plot').data[0].x.at(-1) === 48")
    plot = page.evaluate(
        "() => { const plot = document.querySelector('.js-plotly-plot');"
        "return JSON.stringify([plot.mine, plot.layout.xaxis.range]); }"
    )
    assert json.loads(plot) == [True, [10, 20]]


def test_an_ended_job_is_not_asked_for_again(open_page: Callable[..., Page], ids: Seeded) -> None:
    page = open_page(f"?tab=progress&job={ids.succeeded}")
    expect(page.locator("#job-head .sh-chip")).to_have_text("succeeded")
    page.wait_for_timeout(2500)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(6000)
    assert len(asked) <= 3  # the list of jobs and the slow looks


def test_the_readers_theme_is_kept(open_page: Callable[..., Page]) -> None:
    page = open_page("", dark=True)
    expect(page.locator("body.dark")).to_have_count(1)
    page.get_by_role("button", name="Switch between light and dark").click()
    expect(page.locator("body.dark")).to_have_count(0)
    page.reload()
    page.wait_for_function("window.stillhouse && stillhouse.addressRead")
    expect(page.locator("body.dark")).to_have_count(0)


def test_rows_of_the_table_work_by_keyboard(open_page: Callable[..., Page], ids: Seeded) -> None:
    page = open_page("?tab=jobs")
    page.locator(f"tr[data-job={ids.failed}] a").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#job-head h2")).to_have_text("too large a batch")
    expect(page.locator("#job-notes")).to_contain_text("out_of_memory")
