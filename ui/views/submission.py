"""What the API says about a job before it runs, and about an uploaded data set, as HTML.

Knows DryRunOut and DatasetOut. Does not ask the API.
"""

from __future__ import annotations

from app.core.schemas import DatasetOut, DryRunOut
from ui.text import count, duration, esc, size
from ui.views.pieces import bar, callout, listed, tiles

SHOWN_PROBLEMS = 8
FORMATS = {
    "prompt": "prompts only; the teacher writes the responses",
    "prompt_response": "prompt and response",
    "messages": "chat messages",
    "alpaca": "Alpaca (instruction, input, output)",
    "sharegpt": "ShareGPT (conversations)",
}


def check_result(found: DryRunOut) -> str:
    """Sizes, time, disk, memory by part as bars, warnings."""
    share = found.student_parameters / found.teacher_parameters if found.teacher_parameters else 0
    of_disk = "student, checkpoints, states" if found.disk_bytes.get("states") else "student and checkpoints"
    sizes = tiles(
        [
            ("Teacher", count(found.teacher_parameters), "parameters"),
            ("Student", count(found.student_parameters), f"{share:.0%} of the teacher"),
            ("Time, about", duration(found.seconds), "an estimate"),
            ("Disk, at most", size(found.disk_bytes.get("total", 0)), of_disk),
        ],
        css="two",
    )
    basis = f'<p class="sh-note">{esc(found.seconds_basis)}</p>'
    warnings = listed(esc(warning) for warning in found.warnings)
    noted = callout("warning", "Warnings", warnings) if warnings else ""
    return (
        f'<section class="sh-check" role="status"><h3>Ready to run</h3>{sizes}{basis}{_memory(found)}{noted}</section>'
    )


def _memory(found: DryRunOut) -> str:
    parts = {name: num_bytes for name, num_bytes in found.memory_bytes.items() if name != "total"}
    total = found.memory_bytes.get("total", sum(parts.values()))
    largest = max(parts.values(), default=0) or 1
    rows = "".join(
        f"<tr><th scope='row'>{esc(name.replace('_', ' '))}</th><td>{bar(num_bytes / largest)}</td>"
        f"<td>{size(num_bytes)}</td></tr>"
        for name, num_bytes in parts.items()
    )
    return f"<table class='sh-memory'><caption>Memory, about {size(total)}</caption>{rows}</table>"


def dataset_result(found: DatasetOut) -> str:
    """Rows, the format that was recognised, and each row that was left out with its reason."""
    problems = [f"row {problem.row:,}: {esc(problem.message)}" for problem in found.problems[:SHOWN_PROBLEMS]]
    left = len(found.problems) - SHOWN_PROBLEMS
    if left > 0:
        problems.append(f"and {left:,} more")
    title = f"<bdi>{esc(found.name)}</bdi>: {found.rows:,} rows, {found.rows_with_response:,} with a response"
    left_out = f"<p>Left out:</p>{listed(problems)}" if problems else ""
    kind = "warning" if problems else "good"
    return callout(kind, title, f"<p>Format: {FORMATS[found.format]}.</p>", left_out)
