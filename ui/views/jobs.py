"""Jobs as HTML: the table of jobs, and the head of the chosen one.

Knows JobOut, what an EventView remembers and which metrics sum a run up. Does not ask the API.
"""

from __future__ import annotations

from datetime import datetime

from app.core.events import StudentExported
from app.core.schemas import JobOut, MetricsOut, Page
from ui.event_view import EventView, phase_text
from ui.text import MISSING, age, aware, count, duration, esc, model_name, number, student_name
from ui.views.job_actions import action_buttons
from ui.views.pieces import bar, callout, empty, tiles

TERMINAL = ("succeeded", "failed", "cancelled")
LOADING = empty("Reading the jobs…", "They appear here as soon as the service answers.")
NO_JOBS = empty(
    "No jobs yet.", "Describe one under <a href='?tab=submit'>New job</a>; it appears here as soon as it is queued."
)
NO_MATCH = empty("No job matches.", "Empty the search box or choose <em>Any status</em> to see the others.")
NO_CHOICE = empty(
    "No job chosen.",
    "Choose one under <a href='?tab=jobs'>Jobs</a>: its curves, samples and events appear here, and this page’s "
    "address names it.",
)
NOT_READ = empty("The job cannot be read now.", "It appears here as soon as the service answers.")
COLUMNS = ("Status", "Job", "Recipe", "Teacher → student", "Progress", "Age", "Actions")


def is_terminal(job: JobOut) -> bool:
    return job.status in TERMINAL


def no_curves(job: JobOut) -> str:
    """In place of the charts of a job that has measured nothing."""
    if is_terminal(job):
        return empty("No curves.", "The job ended before it had measured anything; Events says how far it came.")
    return empty("No curves yet.", "They are drawn from the first evaluation on, which comes before the first step.")


def jobs_table(page: Page[JobOut], *, chosen: str, now: datetime, filtered: bool = False) -> str:
    """Newest first; the row of job `chosen` is marked. Names are links, so they work with keyboard and middle click."""
    if not page.data:
        return NO_MATCH if filtered else NO_JOBS
    rows = "".join(_row(job, chosen=job.id == chosen, now=now) for job in page.data)
    head = "".join(f"<th scope='col'>{name}</th>" for name in COLUMNS)
    return (
        f'<div class="sh-scroll" tabindex="0" role="region" aria-label="Jobs">'
        f'<table class="sh-jobs"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def place(count: int, *, before: int, has_more: bool) -> str:
    """Which of the jobs a page shows, in the order newest to oldest."""
    last = "" if has_more else ", the oldest of them last"
    return f'<p class="sh-note" role="status">Jobs {before + 1:,} to {before + count:,}{last}</p>' if count else ""


def _row(job: JobOut, *, chosen: bool, now: datetime) -> str:
    link = f"?job={esc(job.id)}&amp;tab=progress"
    mark = ' aria-current="true"' if chosen else ""
    return (
        f'<tr data-key="{esc(job.id)}" data-job="{esc(job.id)}"{mark}>'
        f'<td class="c-status">{chip(job)}</td>'
        f'<td class="c-name"><a href="{link}"{mark}>{esc(job.name)}</a></td>'
        f'<td class="c-recipe">{esc(job.recipe)}</td>'
        f'<td class="c-models">{models_line(job)}</td>'
        f'<td class="c-steps">{_bar(job)}<span>{_progress(job, now)}</span></td>'
        f'<td class="c-age">{age(job.created_at, now)}</td>'
        f'<td class="c-do">{action_buttons(job)}</td></tr>'
    )


def _progress(job: JobOut, now: datetime) -> str:
    """Steps, and what the reader waits for: the time left, or why the job waits."""
    steps = f"{job.step:,} / {job.max_steps:,}"
    if job.status == "running" and job.eta_s is not None:
        return f"{steps} · {duration(job.eta_s)} left"
    if job.status == "queued" and job.waiting_reason:
        return f"{steps} · {esc(job.waiting_reason)}"
    if job.status == "queued" and job.not_before and aware(job.not_before) > now:
        return f"{steps} · tried again in {duration((aware(job.not_before) - now).total_seconds())}"
    return steps


def chip(job: JobOut) -> str:
    """The status in a word; colour is only a second sign."""
    asked = "stopping" if job.cancel_requested else "pausing" if job.pause_requested else ""
    return f'<span class="sh-chip {job.status}">{asked if asked and job.status == "running" else job.status}</span>'


def models_line(job: JobOut) -> str:
    teacher = model_name(str(job.config.get("teacher", {}).get("model", MISSING)))
    return f"<bdi>{esc(teacher)}</bdi> → <bdi>{esc(student_name(job.config.get('student', {})))}</bdi>"


def _bar(job: JobOut) -> str:
    return bar(job.step / job.max_steps if job.max_steps else 0, css=job.status)


def job_head(job: JobOut, view: EventView, metrics: MetricsOut, *, now: datetime) -> str:
    """Name, status, progress and the six numbers that say where the run stands."""
    dash = '<span class="sh-sep" aria-hidden="true">·</span>'
    facts = dash.join(
        [f"<span>{models_line(job)}</span>", f"<span>recipe {esc(job.recipe)}</span>"]
        + ([f"<span>attempt {job.attempt}</span>"] if job.attempt > 1 else [])
        + ([f"<span>student {_exported(view.exported)}</span>"] if view.exported else [])
        + [f"<code>{esc(job.id)}</code>"]
    )
    title = f'<div class="sh-title"><h2><bdi>{esc(job.name)}</bdi></h2>{chip(job)}{action_buttons(job)}</div>'
    return (
        f'<section class="sh-head" aria-label="Chosen job">{title}'
        f'<p class="sh-facts">{facts}</p>{_bar(job)}{tiles(_facts(job, view, metrics, now))}</section>'
    )


def _exported(student: StudentExported) -> str:
    return f"{count(student.parameters)} parameters, weights <code>{esc(student.weights_sha256[:10])}</code>"


def _facts(job: JobOut, view: EventView, metrics: MetricsOut, now: datetime) -> list[tuple[str, str, str]]:
    step = view.step
    running = not is_terminal(job)
    speed = number(step.tokens_per_s) if step else MISSING
    eta = duration(step.eta_s) if step and running else MISSING
    return [
        ("Step", f"{job.step:,}", f"of {job.max_steps:,}"),
        ("Now", esc(_now(job, view)), esc(_source(view)) if running else _ended(job, now)),
        ("Tokens per second", speed, "response tokens"),
        ("Time left", eta, f"{duration(_elapsed_s(job, now))} so far")
        if running
        else ("Took", duration(_elapsed_s(job, now)), "from start to end"),
        _before_after("Held-out KL", "eval/kl_ts", metrics),
        _before_after("Held-out ROUGE-L", "eval/rouge_l", metrics),
    ]


def _ended(job: JobOut, now: datetime) -> str:
    return age(job.finished_at, now) if job.finished_at else ""


def _now(job: JobOut, view: EventView) -> str:
    if is_terminal(job):
        return {"succeeded": "Finished", "failed": "Failed", "cancelled": "Cancelled"}[job.status]
    if job.status in ("queued", "paused"):
        return {"queued": "Waiting", "paused": "Paused"}[job.status]
    if job.cancel_requested or job.pause_requested:
        return "Stopping" if job.cancel_requested else "Pausing"
    if view.phase:
        return phase_text(view.phase).split(",")[0]
    return "Training" if view.step else "Starting"


def _source(view: EventView) -> str:
    if view.phase and view.phase.total:
        return f"{view.phase.done:,} of {view.phase.total:,}"
    words = {"ground_truth": "on the data’s responses", "fresh": "on fresh samples", "replay": "on the replay buffer"}
    return words[view.step.source] if view.step and not view.phase else ""


def _elapsed_s(job: JobOut, now: datetime) -> float | None:
    if job.started_at is None:
        return None
    return (aware(job.finished_at or now) - aware(job.started_at)).total_seconds()


def _before_after(name: str, metric: str, metrics: MetricsOut) -> tuple[str, str, str]:
    points = next((one.points for one in metrics.series if one.name == metric), ())
    if not points:
        return (name, MISSING, "not measured yet")
    (first_step, first), (_, last) = points[0], points[-1]
    if len(points) == 1:
        return (name, number(last), f"at step {first_step:,}")
    return (name, number(last), f"{number(first)} at the start")


def callouts(job: JobOut, view: EventView) -> str:
    """What a reader must not miss: why the job failed, and what the run warned of."""
    parts = []
    if job.error:
        title = ("Failed: " if job.status == "failed" else "") + f"<code>{esc(job.error.code)}</code>"
        parts.append(callout("error", title, f"<p>{esc(job.error.message)}</p>"))
    for warning in view.warnings[-3:]:
        at = f" at step {warning.step:,}" if warning.step is not None else ""
        title = f"Warning{at}: <code>{esc(warning.code)}</code>"
        parts.append(callout("warning", title, f"<p>{esc(warning.message)}</p>"))
    if len(view.warnings) > 3:
        parts.append(f'<p class="sh-note">{len(view.warnings)} warnings in all; the event log has them.</p>')
    return "".join(parts)
