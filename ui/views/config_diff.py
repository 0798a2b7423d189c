"""What jobs' descriptions differ in, as a table. Knows stored configs; a list of `kind`s is compared kind by kind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.core.schemas import JobOut
from ui.text import MISSING, esc

# As plots.py draws them, in words.
DASHES = ("solid", "dashed", "dotted", "dash-dotted")


def config_diff(jobs: Sequence[JobOut]) -> str:
    """Which line is whose, and a row per setting that is not the same in all; nothing for one job alone."""
    if len(jobs) < 2:
        return ""
    rows = differences([job.config for job in jobs])
    same = "" if rows else '<p class="sh-note">These jobs have the same description.</p>'
    head = "".join(
        f"<th scope='col'><bdi>{esc(job.name)}</bdi> <span>({dash} line)</span></th>"
        for job, dash in zip(jobs, DASHES, strict=False)
    )
    body = "".join(
        f"<tr><th scope='row'><code>{_breakable(path)}</code></th>"
        f"{''.join(f'<td>{esc(one)}</td>' for one in values)}</tr>"
        for path, values in rows
    )
    return (
        '<div class="sh-scroll sh-short" tabindex="0" role="region" aria-label="What the descriptions differ in">'
        f'<table class="sh-diff"><thead><tr><th scope="col">Setting</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{same}"
    )


def _breakable(path: str) -> str:
    """On a phone a long path goes on in the next line, after a dot or an underscore."""
    return esc(path).replace(".", ".<wbr>").replace("_", "_<wbr>")


def differences(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """(path, value in each config), in the order of the configs' own settings."""
    flat = [dict(_settings("", config)) for config in configs]
    paths = dict.fromkeys(path for one in flat for path in one)
    rows = [(path, [one.get(path, MISSING) for one in flat]) for path in paths]
    return [(path, values) for path, values in rows if len(set(values)) > 1]


def _settings(path: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [found for key, inner in value.items() for found in _settings(f"{path}.{key}" if path else key, inner)]
    if isinstance(value, list | tuple) and value and all(isinstance(one, Mapping) and "kind" in one for one in value):
        return [found for one in value for found in _settings(f"{path}.{one['kind']}", one)]
    return [(path, value if isinstance(value, str) else json.dumps(value))]
