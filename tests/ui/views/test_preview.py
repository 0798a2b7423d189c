from __future__ import annotations

from app.core.preview_schemas import DatasetRow, Lengths, PreviewOut, TokenOut
from tests.ui.seed import HOSTILE
from ui.views.preview import SHOWN_TOKENS, rows_preview, tokens_preview

LENGTHS = Lengths(edges=[0, 4, 8], counts=[3, 1], shortest=1, median=2, longest=7)
LIMITS = {"max_prompt_tokens": 512, "max_response_tokens": 256}


def found(*tokens: TokenOut, **fields: object) -> PreviewOut:
    values: dict[str, object] = {
        "row": 1, "tokens": tokens, "is_cut": False, "rows_read": 4, "prompt_lengths": LENGTHS,
        "response_lengths": None, "too_long": [], "too_long_count": 0, "cut_count": 0,
    }  # fmt: skip
    return PreviewOut.model_validate(values | fields)


def test_tokens_have_their_ids_and_the_mask_is_more_than_a_colour() -> None:
    html = tokens_preview(
        found(TokenOut(id=7, text=" a\n", in_loss=False), TokenOut(id=9, text="", in_loss=True)), **LIMITS
    )
    assert '<span class="sh-token read" title="id 7, only read"><bdi>␣a⏎</bdi><small>7</small></span>' in html
    assert '<span class="sh-token loss" title="id 9, in the loss"><bdi>∅</bdi><small>9</small></span>' in html
    assert "1 underlined ones carry loss" in html
    assert "Prompts: 1 to 7 tokens, median 2" in html
    assert "4 to 7 tokens: 1 rows" in html


def test_text_of_tokens_and_rows_stays_text() -> None:
    html = tokens_preview(found(TokenOut(id=1, text=HOSTILE, in_loss=True)), **LIMITS)
    html += rows_preview([DatasetRow(messages=[{"role": HOSTILE, "content": HOSTILE}], response=HOSTILE * 40)])
    assert "<script" not in html
    assert "…" in html


def test_a_rows_other_right_answers_are_shown() -> None:
    row = DatasetRow(messages=[{"role": "user", "content": "2 + 2?"}], response="4", references=["four", HOSTILE])
    html = rows_preview([row])
    assert html.count("<dt>also right</dt>") == 2
    assert "<script" not in html


def test_a_row_without_response_says_so() -> None:
    assert "(none in the data)" in rows_preview([DatasetRow(messages=[{"role": "user", "content": "a"}])])
    assert "none carry loss yet" in tokens_preview(found(TokenOut(id=1, text="a", in_loss=False)), **LIMITS)


def test_a_very_long_row_is_cut_on_the_page_and_says_so() -> None:
    html = tokens_preview(found(*[TokenOut(id=i, text="a", in_loss=False) for i in range(SHOWN_TOKENS + 3)]), **LIMITS)
    assert html.count("sh-token ") == SHOWN_TOKENS
    assert "and 3 more tokens" in html


def test_prompts_too_long_and_responses_cut_are_warned_of() -> None:
    html = tokens_preview(found(too_long=[2, 5], too_long_count=30, cut_count=4), **LIMITS)
    assert "30 prompts are longer" in html
    assert "Rows 2, 5, …." in html
    assert "4 responses are longer" in html
