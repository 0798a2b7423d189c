"""Pictures of the page for README and docs: `python -m ui.screenshots URL OUT_FOLDER JOB_ID`.

Takes them from a running service and a job that has succeeded; for Compare it asks the job's models a real question.
Needs Playwright (the `dev` extra) and the system's Chromium. Knows the page as a reader does, nothing of its inside.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
TEACHER = "HuggingFaceTB/SmolLM2-135M-Instruct"
QUESTION = "What is the capital of Italy, and what is it known for?"
ANSWERED_MS = 180_000


def main(url: str, out: Path, job_id: str) -> None:
    """Writes new-job, progress, samples, compare (also dark) and progress-phone .png into `out`."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("No Chromium on the PATH; install it (Debian: apt-get install chromium) and run this again.")
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        take_all(browser, url.rstrip("/"), out, job_id)
        browser.close()


def take_all(browser: Browser, url: str, out: Path, job_id: str) -> None:
    job = f"{url}/?job={job_id}"
    page = open_page(browser, f"{url}/", DESKTOP)
    page.locator("#f-name textarea, #f-name input").fill("my first distillation")
    page.locator("#f-teacher input").fill(TEACHER)
    page.locator("#f-teacher input").press("Enter")
    page.locator("#f-name textarea, #f-name input").click()
    page.wait_for_timeout(1000)  # the job beside the form follows it
    save(page, out / "new-job.png")

    page = open_page(browser, f"{job}&tab=progress", DESKTOP)
    drawn(page)
    save(page, out / "progress.png")
    page.get_by_role("tab", name="Samples").click()
    page.locator("#answers .sh-sample").first.wait_for()
    save(page, out / "samples.png")

    page = open_page(browser, f"{job}&tab=compare", DESKTOP)
    page.locator("#compare-models .token").nth(2).wait_for()
    page.locator("#compare-prompt textarea").fill(QUESTION)
    page.locator("#compare-go").click()
    page.locator("#panes .sh-numbers").nth(2).wait_for(timeout=ANSWERED_MS)
    save(page, out / "compare.png")
    compared = page.url

    page = open_page(browser, compared, DESKTOP, dark=True)
    page.locator("#panes .sh-numbers").nth(2).wait_for()
    save(page, out / "compare-dark.png")

    page = open_page(browser, f"{job}&tab=progress", PHONE)
    drawn(page)
    save(page, out / "progress-phone.png")


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
    if len(sys.argv) != 4:
        sys.exit("usage: python -m ui.screenshots URL OUT_FOLDER JOB_ID")
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
