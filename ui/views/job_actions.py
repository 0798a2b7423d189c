"""What a person may do to a job in its status, as buttons.

Knows which status allows what, as the API does. Does not do it: live.js asks first, tabs/job_actions.py calls the API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.schemas import JobOut
from ui.text import esc

LABELS: Mapping[str, str] = {
    "pause": "Pause",
    "resume": "Resume",
    "retry": "Retry",
    "cancel": "Cancel",
    "clone": "Clone",
    "delete": "Delete",
}
ALLOWED: Mapping[str, Sequence[str]] = {
    "queued": ("pause", "cancel", "clone"),
    "running": ("pause", "cancel", "clone"),
    "paused": ("resume", "cancel", "clone", "delete"),
    "succeeded": ("clone", "delete"),
    "failed": ("retry", "clone", "delete"),
    "cancelled": ("retry", "clone", "delete"),
}


def actions_of(job: JobOut) -> list[str]:
    """A job that is stopping already is not asked again, and one that is to pause may still be cancelled."""
    asked = {"pause", "cancel"} if job.cancel_requested else {"pause"} if job.pause_requested else set()
    stopping = job.status in ("queued", "running")
    return [action for action in ALLOWED[job.status] if not (stopping and action in asked)]


def action_buttons(job: JobOut) -> str:
    """One button per action; each says in its label which job it is about."""
    buttons = "".join(
        f'<button type="button" class="sh-do {action}" data-key="{action}" data-action="{action}" '
        f'data-job="{esc(job.id)}" data-name="{esc(job.name)}" aria-label="{LABELS[action]}: {esc(job.name)}">'
        f"{LABELS[action]}</button>"
        for action in actions_of(job)
    )
    return f'<div class="sh-actions">{buttons}</div>'
