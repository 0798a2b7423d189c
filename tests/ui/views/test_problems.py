from __future__ import annotations

import pytest

from ui.client import UNREACHABLE, ApiProblem, FieldProblem
from ui.views.problems import banner, problem_list


def test_banner_for_a_service_that_is_away() -> None:
    html = banner(ApiProblem(UNREACHABLE, "http://127.0.0.1:1 does not answer."))
    assert "The service does not answer." in html
    assert 'role="alert"' in html


def test_banner_for_a_service_in_trouble() -> None:
    assert "has a problem" in banner(ApiProblem("internal", "<oops>", status=500))
    assert "&lt;oops&gt;" in banner(ApiProblem("internal", "<oops>", status=500))


@pytest.mark.parametrize("problem", [None, ApiProblem("not_found", "no job", status=404)])
def test_no_banner_for_a_problem_of_one_thing(problem: ApiProblem | None) -> None:
    assert banner(problem) == ""


def test_list_has_a_line_per_field_or_the_detail() -> None:
    errors = [FieldProblem("config.student.layers", "too <many>"), FieldProblem("name", "missing")]
    html = problem_list(ApiProblem("invalid_request", "all in one line", status=422, errors=errors), title="No.")
    assert "<li><code>config.student.layers</code>: too &lt;many&gt;</li>" in html
    assert "all in one line" not in html
    assert "all in one line" in problem_list(ApiProblem("conflict", "all in one line", status=409), title="No.")


def test_a_cure_is_said_below_the_problem() -> None:
    html = problem_list(ApiProblem("not_found", "no job", status=404), title="Gone.", cure="Choose <b>another</b>.")
    assert "<p>no job</p><p>Choose <b>another</b>.</p>" in html
