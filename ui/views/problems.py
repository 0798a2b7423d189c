"""What went wrong, as HTML: the banner of a service that does not answer, and problems by field.

Knows ApiProblem. Never shows a traceback.
"""

from __future__ import annotations

from ui.client import UNREACHABLE, ApiProblem
from ui.text import esc
from ui.views.pieces import callout, listed


def banner(problem: ApiProblem | None) -> str:
    """For the top of the page; empty when all is well or the problem is about one thing only."""
    if problem is None or 400 <= problem.status < 500:
        return ""
    if problem.code == UNREACHABLE:
        what, cure = (
            "The service does not answer.",
            "This page tries again by itself; if it stays so, start the API (make up).",
        )
    else:
        what, cure = "The service has a problem.", "This page tries again by itself; the API’s log says more."
    return f'<div class="sh-banner" role="alert"><b>{what}</b> {esc(problem.detail)} {cure}</div>'


def problem_list(problem: ApiProblem, *, title: str, cure: str = "") -> str:
    """`title`, and one line per field (`config.student.layers: …`), or the detail where no field is to blame; then what
    can be done, HTML of our own."""
    fields = listed(f"<code>{esc(one.path)}</code>: {esc(one.message)}" for one in problem.errors)
    # The detail repeats the fields in one line.
    what = fields or f"<p>{esc(problem.detail)}</p>"
    return callout("error", f"{esc(title)} <code>{esc(problem.code)}</code>", what, cure and f"<p>{cure}</p>")
