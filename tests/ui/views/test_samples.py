from __future__ import annotations

from datetime import UTC, datetime

from app.core.events import Correction, SampleDrawn
from tests.ui.seed import HOSTILE
from ui.event_view import Line
from ui.views.samples import NO_CORRECTIONS, NO_LINES, NO_SAMPLES, answers, corrections, event_log


def correction(**changes: object) -> Correction:
    fields: dict[str, object] = {
        "step": 3,
        "prompt": "p",
        "before": "The sky is",
        "student_token": " green",
        "teacher_token": " blue",
        "dropped": " green and so on",
        "regenerated": " and wide.",
        "error_position": 3,
        "kl": 1.5,
    }
    return Correction.model_validate(fields | changes)


def test_answers_are_grouped_by_prompt_newest_first() -> None:
    drawn = [SampleDrawn(step=s, prompt=p, text=f"{p}{s}", reference="r") for s in (0, 20) for p in ("a", "b")]
    html = answers(drawn)
    assert html.count("<article") == 2
    assert html.index("step 20") < html.index("step 0")
    assert html.count(">reference<") == 2


def test_model_text_is_text() -> None:
    html = answers([SampleDrawn(step=1, prompt=HOSTILE, text=HOSTILE, reference=HOSTILE)])
    html += corrections([correction(before=HOSTILE, student_token="<b>", dropped=HOSTILE, regenerated=HOSTILE)])
    html += event_log([Line(1, datetime(2026, 1, 1, tzinfo=UTC), "warning", HOSTILE)])
    assert "<script" not in html
    assert "<b>" not in html
    assert html.count("&lt;script&gt;") == 7
    assert 'dir="auto"' in html


def test_empty_answer_is_visible() -> None:
    assert "(empty answer)" in answers([SampleDrawn(step=1, prompt="p", text=" \n")])


def test_correction_strikes_the_students_token_and_tints_the_new_tail() -> None:
    html = corrections([correction()])
    assert "The sky is<del" in html
    assert "> green</del><ins" in html
    assert "> blue</ins><span" in html
    assert "error at token 4 · KL 1.50" in html


def test_a_token_of_white_space_is_made_visible() -> None:
    html = corrections([correction(student_token="\n", teacher_token="", dropped=" ")])
    assert ">⏎</del>" in html
    assert ">∅</ins>" in html
    assert "<details>" not in html


def test_nothing_yet_says_what_brings_it() -> None:
    assert (answers([]), corrections([]), event_log([])) == (NO_SAMPLES, NO_CORRECTIONS, NO_LINES)


def test_log_is_newest_first_in_utc() -> None:
    lines = [Line(i, datetime(2026, 1, 1, 10, 0, i, tzinfo=UTC), "status", f"line {i}") for i in (1, 2)]
    html = event_log(lines)
    assert html.index("line 2") < html.index("line 1")
    assert "<time>10:00:02</time>" in html
