"""Pictures of every tab for README and docs: `make screenshots`, or `python -m ui.screenshots OUT_FOLDER [JOB_ID]`.

Takes them from the service that is up and a job of its that succeeded (the newest, if none is named); for Compare it
asks the job's models a real question. Needs Playwright (the `dev` extra) and the system's Chromium. Knows the page as a
reader does, nothing of its inside.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from app.core.settings import ServiceSettings
from ui.client import ApiProblem, StillhouseClient, make_http

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
TEACHER = "HuggingFaceTB/SmolLM2-135M-Instruct"
QUESTION = "What is the capital of Italy, and what is it known for?"
ANSWERED_MS = 180_000


def main(out: Path, job_id: str = "") -> None:
    """Writes new-job, jobs, progress, samples, compare, models (.png), some also dark or as on a phone, into `out`."""
    from playwright.sync_api import sync_playwright

    settings = ServiceSettings()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("No Chromium on the PATH; install it (Debian: apt-get install chromium) and run this again.")
    job_id = job_id or newest_job(StillhouseClient(make_http(settings.resolved_api_url)))
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        take_all(browser, f"http://{settings.host}:{settings.ui_port}", out, job_id)
        browser.close()


def newest_job(api: StillhouseClient) -> str:
    """The id of the newest job that succeeded; ends the program when there is none."""
    try:
        jobs = api.jobs(limit=1, status="succeeded").data
    except ApiProblem as problem:
        sys.exit(f"{problem.detail} Start the service first: make up, or make demo.")
    if not jobs:
        sys.exit("No job has succeeded yet; make demo trains a real one.")
    return jobs[0].id


def take_all(browser: Browser, url: str, out: Path, job_id: str) -> None:
    job = f"{url}/?job={job_id}"
    new_job(browser, url, out)
    for dark in (False, True):
        page = open_page(browser, f"{url}/?tab=jobs", DESKTOP, dark=dark)
        page.locator("#jobs tr[data-job]").first.wait_for()
        save(page, out / f"jobs{'-dark' if dark else ''}.png")
        page = open_page(browser, f"{job}&tab=progress", DESKTOP, dark=dark)
        drawn(page)
        save(page, out / f"progress{'-dark' if dark else ''}.png")
    page.get_by_role("tab", name="Samples").click()
    page.locator("#answers .sh-sample").first.wait_for()
    save(page, out / "samples.png")

    page = open_page(browser, f"{job}&tab=compare", DESKTOP)
    page.locator("#compare-models .token").nth(2).wait_for()
    page.locator("#compare-prompt textarea").fill(QUESTION)
    page.locator("#compare-go").click()
    page.locator("#panes .sh-numbers").nth(2).wait_for(timeout=ANSWERED_MS)
    page.wait_for_function("!document.querySelector('#panes [aria-busy]')", timeout=ANSWERED_MS)
    save(page, out / "compare.png")
    page = open_page(browser, page.url, DESKTOP, dark=True)
    page.locator("#panes .sh-numbers").nth(2).wait_for()
    save(page, out / "compare-dark.png")

    page = open_page(browser, f"{job}&tab=models", DESKTOP)
    page.locator("#models article").first.wait_for()
    save(page, out / "models.png")
    page = open_page(browser, f"{job}&tab=progress", PHONE)
    drawn(page)
    save(page, out / "progress-phone.png")


def new_job(browser: Browser, url: str, out: Path) -> None:
    page = open_page(browser, f"{url}/", DESKTOP)
    page.locator("#f-name textarea, #f-name input").fill("my first distillation")
    page.locator("#f-teacher input").fill(TEACHER)
    page.locator("#f-teacher input").press("Enter")
    page.locator("#f-name textarea, #f-name input").click()
    page.wait_for_timeout(1000)  # the job beside the form follows it
    save(page, out / "new-job.png")


def open_page(browser: Browser, url: str, viewport: Mapping[str, int], *, dark: bool = False) -> Page:
    context = browser.new_context(
        viewport={"width": viewport["width"], "height": viewport["height"]}, color_scheme="dark" if dark else "light"
    )
    page = context.new_page()
    page.goto(url)
    page.wait_for_function("window.stillhouse && stillhouse.addressRead")
    page.wait_for_timeout(1500)  # lists and defaults, asked for while the page opens
    return page


def drawn(page: Page) -> None:
    page.locator("#charts .sh-chart .main-svg").first.wait_for()
    page.wait_for_timeout(1500)


def save(page: Page, file: Path) -> None:
    """A PNG with a palette: a page has few colours, and a repository keeps every version for ever."""
    page.screenshot(path=file)
    with Image.open(file) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("usage: python -m ui.screenshots OUT_FOLDER [JOB_ID]")
    main(Path(sys.argv[1]), *sys.argv[2:])
