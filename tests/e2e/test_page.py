"""The page in a real Chromium over a seeded database: what does not need a model to train.

Sizes, hostile texts, curves that go on, timers that rest. The main job is in test_browser.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from app.core.db import events
from app.core.db.session import make_engine, make_sessions
from app.core.settings import ServiceSettings
from tests.running_service import free_port
from tests.ui.conftest import serving
from tests.ui.seed import HOSTILE, Seeded, seed, step_events
from ui.main import serve

pytestmark = pytest.mark.browser
SIZES = {"desktop": {"width": 1440, "height": 900}, "phone": {"width": 390, "height": 844}}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


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
        page.goto(f"{url}/{query}")
        page.wait_for_function("window.stillhouse && stillhouse.addressRead")
        return page

    yield open_at
    for context in contexts:
        context.close()


def test_nothing_is_wider_than_the_screen(open_page: Callable[..., Page], ids: Seeded, size: str) -> None:
    page = open_page(f"?tab=progress&job={ids.hostile}&cmp={ids.comparison}", size=size)
    page.locator("#charts .sh-chart").first.scroll_into_view_if_needed()
    expect(page.locator("#charts .main-svg").first).to_be_visible(timeout=20_000)
    for tab in ("New job", "Compare", "Progress", "Samples", "Events", "Description"):
        page.get_by_role("tab", name=tab).click()
        page.wait_for_timeout(300)
        wide = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        scrolled, shown = page.evaluate(wide)
        assert scrolled <= shown, tab


def test_hostile_names_prompts_and_answers_stay_text(open_page: Callable[..., Page], ids: Seeded) -> None:
    page = open_page(f"?tab=progress&job={ids.hostile}&cmp={ids.comparison}")
    expect(page.locator("#job-head h2")).to_have_text(HOSTILE)
    page.get_by_role("tab", name="Samples").click()
    expect(page.locator("#answers h4").last).to_have_text(HOSTILE)
    page.get_by_role("tab", name="Compare").click()
    expect(page.locator("#panes .sh-answer").nth(1)).to_have_text(HOSTILE * 3)
    assert page.locator("#panes script, #panes img, #panes .sh-answer a, #answers img, #job-head img").count() == 0
    assert page.evaluate("window.hacked") is None


def test_curves_go_on_in_place_and_keep_the_readers_zoom(
    open_page: Callable[..., Page], home: Path, ids: Seeded
) -> None:
    page = open_page(f"?tab=progress&job={ids.running}")
    expect(page.locator("#charts .main-svg").first).to_be_visible(timeout=20_000)
    page.evaluate(
        "() => { const plot = document.querySelector('.js-plotly-plot'); plot.mine = true;"
        "return Plotly.relayout(plot, {'xaxis.range[0]': 10, 'xaxis.range[1]': 20}); }"
    )
    engine = make_engine(ServiceSettings(home=home).resolved_database_url)
    with make_sessions(engine).begin() as session:
        told = [event for step in (47, 48) for event in step_events(step, Random(step))]
        events.append(session, job_id=ids.running, attempt=1, events=told, now=datetime.now(UTC))
    engine.dispose()
    expect(page.locator("#job-head .sh-tile b").first).to_have_text("48", timeout=20_000)
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
    assert len(asked) <= 1  # the slow list


def test_the_readers_theme_is_kept(open_page: Callable[..., Page]) -> None:
    page = open_page("", dark=True)
    expect(page.locator("body.dark")).to_have_count(1)
    page.get_by_role("button", name="Switch between light and dark").click()
    expect(page.locator("body.dark")).to_have_count(0)
    page.reload()
    page.wait_for_function("window.stillhouse && stillhouse.addressRead")
    expect(page.locator("body.dark")).to_have_count(0)


def test_rows_of_the_table_work_by_keyboard(open_page: Callable[..., Page], ids: Seeded) -> None:
    page = open_page("?tab=progress")
    page.locator(f"tr[data-job={ids.failed}] a").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#job-head h2")).to_have_text("too large a batch")
    expect(page.locator("#job-notes")).to_contain_text("out_of_memory")
