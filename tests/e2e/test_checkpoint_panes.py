"""Checkpoints of a real job as panes of Compare, in a real Chromium on the whole running service.

The job is small, but its steps change the weights, so that a pane with another step's answer would be found out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.running_service import RunningService, running_service
from tests.tiny_models import make_tiny_model, never_ending, write_rows

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
LONG_MS = 120_000
NAME = "two steps kept"


@pytest.fixture(scope="module")
def house(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(scope="module")
def job(house: RunningService, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """It keeps steps 2 and 4; answers of all its models go on until they are stopped."""
    folder = tmp_path_factory.mktemp("job")
    teacher = never_ending(make_tiny_model(folder / "teacher", seed=1, context=4200))
    dataset_id = house.upload(write_rows(folder / "rows.jsonl"))
    config = {
        "teacher": {"model": str(teacher)},
        "student": {"kind": "from_teacher", "layers": 1},
        "data": {"kind": "dataset", "dataset_id": dataset_id, "dev_rows": 2, "max_response_tokens": 8},
        "sampling": {"kind": "ground_truth", "max_new_tokens": 4},
        "training": {"max_steps": 4, "batch_size": 2, "learning_rate": 1e-4, "checkpoint_every": 2},
        "evaluation": {"every_steps": 2, "rouge_rows": 0},
    }
    ended = house.wait_for_end(house.post("/v1/jobs", json={"name": NAME, "config": config})["id"])
    assert ended["status"] == "succeeded", ended
    return ended


@pytest.fixture
def page(house: RunningService, job: Any, chromium: str) -> Iterator[Page]:
    """Compare, with the job's teacher and student chosen."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        opened = browser.new_page(viewport={"width": 1440, "height": 900})
        opened.set_default_timeout(60_000)
        opened.goto(f"http://127.0.0.1:{house.settings.ui_port}/?tab=compare&job={job['id']}")
        opened.wait_for_function("window.stillhouse && stillhouse.addressRead")
        expect(opened.locator("#compare-models .token")).to_have_count(3, timeout=LONG_MS)
        take_out(opened, "Untrained student")
        yield opened
        browser.close()


def take_out(page: Page, kind: str) -> None:
    chosen = page.locator("#compare-models .token", has_text=f"{kind}:")
    chosen.locator(".token-remove").click()
    expect(chosen).to_have_count(0)


def add_checkpoints(page: Page, *steps: int) -> None:
    tokens = page.locator("#compare-models .token")
    before = tokens.count()
    page.get_by_role("button", name="Add a checkpoint of a job").click()
    expect(page.locator("#checkpoint-step input")).not_to_have_value("", timeout=LONG_MS)
    for added, step in enumerate(steps, start=1):
        page.locator("#checkpoint-step input").click()
        page.locator("#checkpoint-step").get_by_role("option", name=re.compile(rf"\b{step}\b")).click()
        page.locator("#checkpoint-add").click()
        expect(tokens).to_have_count(before + added, timeout=LONG_MS)


def asked(house: RunningService, page: Page) -> Any:
    """The comparison that the address names, as the API has it."""
    return house.get(f"/v1/comparisons/{page.url.split('cmp=')[1].split('&')[0]}")


def test_two_steps_beside_teacher_and_student(house: RunningService, page: Page, job: Any) -> None:
    """Four write at once; each pane has its own name and weights, and the student is the best step, no other."""
    add_checkpoints(page, 2, 4)
    page.locator("#compare-prompt textarea").fill("the small brown dog")
    page.get_by_label("New tokens, at most").first.fill("4000")
    page.locator("#compare-go").click()
    expect(page.locator("#panes [aria-busy]")).to_have_count(4, timeout=LONG_MS)
    page.wait_for_function(
        "[...document.querySelectorAll('#panes .sh-answer')].every((one) => one.innerText.length > 20)"
    )
    page.locator("#compare-stop").click()
    expect(page.locator("#panes .sh-note", has_text="Stopped.")).to_have_count(4, timeout=LONG_MS)

    kinds = page.locator("#panes header span").all_inner_texts()
    names = page.locator("#panes h3").all_inner_texts()
    assert list(zip(kinds, names, strict=True))[1:] == [
        ("Student", NAME),
        ("Checkpoint", f"{NAME} · step 2"),
        ("Checkpoint", f"{NAME} · step 4"),
    ]
    answers = {one["model_id"]: one for one in asked(house, page)["answers"]}
    steps = [f"{job['id']}@{step}" for step in (2, 4)]
    assert list(answers) == [job["teacher_id"], job["student_id"], *steps]
    shown = page.locator("#panes .sh-numbers code").evaluate_all("(all) => all.map((one) => one.title)")
    assert shown == [answer["weights_sha256"] for answer in answers.values()]
    by_step = dict(zip(steps, shown[2:], strict=True))
    assert len({shown[0], *by_step.values()}) == 3
    (best,) = [one["model_id"] for one in house.get(f"/v1/jobs/{job['id']}/checkpoints")["data"] if one["best"]]
    assert shown[1] == by_step[best] == house.get(f"/v1/models/{job['student_id']}")["weights_sha256"]

    page.get_by_role("button", name="Where they part, token by token").click()
    for box in ("of", "student_id"):
        page.locator(f"#divergence-{box} input").click()
        page.locator(f"#divergence-{box}").get_by_role("option", name="step 2").click()
    page.locator("#divergence-go").click()
    expect(page.locator("#reading [role=option]").first).to_be_visible(timeout=LONG_MS)
    read = page.locator("#reading .sh-tokens").evaluate("(one) => one.textContent")
    assert read == answers[steps[0]]["text"]
    by = page.locator("#reading .sh-note code").all_inner_texts()
    assert by == [shown[0][:10], by_step[steps[0]][:10]]


def test_a_blind_vote_between_two_steps_is_revealed_and_counted(house: RunningService, page: Page, job: Any) -> None:
    for kind in ("Teacher", "Student"):
        take_out(page, kind)
    add_checkpoints(page, 4, 2)
    page.get_by_label("New tokens, at most").first.fill("6")
    page.get_by_label("Blind").check()
    page.locator("#compare-go").click()
    page.locator("#vote-a").wait_for(timeout=LONG_MS)
    assert page.locator("#panes h3").all_inner_texts() == ["A", "B"]
    page.locator("#vote-a").click()
    revealed = page.locator("#panes .sh-callout")
    expect(revealed).to_contain_text("You said: A is better", timeout=LONG_MS)
    first, second = asked(house, page)["request"]["model_ids"]
    assert {first, second} == {f"{job['id']}@2", f"{job['id']}@4"}
    in_words = [f"Checkpoint: {NAME} · step {one.partition('@')[2]}" for one in (first, second)]
    expect(revealed).to_contain_text(f"A was {in_words[0]}; B was {in_words[1]}.")
    (pair,) = house.get("/v1/votes/summary")["data"]
    assert pair["wins_a" if pair["model_a"] == first else "wins_b"] == 1
    assert {pair["model_a"], pair["model_b"]} == {first, second}
