from __future__ import annotations

import html
import json
import re

from app.core.compare_schemas import DivergenceIn, DivergenceOut
from app.core.schemas import JobError
from tests.ui.seed_compare import ERROR, PIECES, reading
from ui.views.divergence import view

REQUEST = DivergenceIn(of="s", teacher_id="t", student_id="s")


def out(**changes: object) -> DivergenceOut:
    values = {"id": "div_1", "comparison_id": "cmp_1", "request": REQUEST, "status": "succeeded", "error": None}
    return DivergenceOut.model_validate({**values, "result": reading(), **changes})


def test_tokens_are_text_and_join_to_the_answer() -> None:
    shown = view(out())
    tokens = re.findall(r'<span role="option"[^>]*>(.*?)</span>', shown, flags=re.DOTALL)
    assert [html.unescape(token) for token in tokens] == PIECES
    assert "<script" not in shown
    assert "<b>sky" not in shown


def test_kl_is_told_by_steps_words_and_a_frame() -> None:
    shown = view(out())
    steps = re.findall(r'role="option" class="(k\d)( scrg)?"', shown)
    assert [step for step, _ in steps] == ["k0", "k1", "k2", "k3", "k4", "k0", "k0"]
    assert [bool(scrg) for _, scrg in steps].index(True) == ERROR
    assert "KL 2.60" in shown
    assert "token 4, is the largest KL" in shown
    assert shown.count('tabindex="0"') == 1
    assert f'data-jump="{ERROR}"' in shown


def test_details_carry_both_top_five() -> None:
    data = re.search(r'data-tokens="([^"]*)"', view(out()))
    assert data is not None
    details = json.loads(html.unescape(data.group(1)))
    assert len(details) == len(PIECES)
    assert details[0][0] == PIECES[0]
    assert [len(details[0][i]) for i in (6, 7)] == [5, 5]


def test_a_failure_a_wait_and_an_empty_answer() -> None:
    failed = out(status="failed", result=None, error=JobError(code="vocabulary_mismatch", message="<two>"))
    assert "&lt;two&gt;" in view(failed)
    assert "read the answer" in view(out(status="queued", result=None))
    empty = reading().model_copy(update={"tokens": (), "largest": None, "error_position": None})
    assert "no tokens" in view(out(result=empty))
    agreed = reading().model_copy(update={"error_position": None})
    assert "would correct nothing" in view(out(result=agreed))
