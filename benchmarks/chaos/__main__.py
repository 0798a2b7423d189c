"""Breaks the service for some minutes and says whether it kept its promises: `make chaos`.

    python -m benchmarks.chaos [--seed 7] [--faults 36] [--minutes 20] [--back-end "sqlite + files"] [--out FILE]

On SQLite with a broker of files, and on PostgreSQL with Redis: real processes, a tiny real model, jobs over REST, and
faults in the order that the seed draws (the moments are the machine's own). Status 1, with the broken promises, when a
job was lost, trained twice or came out differently, an event was lost or repeated, or something was left behind.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.core.errors import StillhouseError
from app.core.folder_cache import FolderCache
from app.supervisor import StopRequested
from benchmarks.chaos import evidence
from benchmarks.chaos.faults import FAULTS, drawn
from benchmarks.chaos.house import BACK_ENDS, House, OutOfTime, open_house
from benchmarks.chaos.life import Life, variants
from benchmarks.chaos.verdict import KINDS, Findings, judge
from tests.tiny_models import make_tiny_model, write_rows

RESULTS = Path(__file__).parents[2] / "benchmarks/results/chaos.json"
# Between two faults, so that they meet the service in every state: also while it still mends the one before.
_PAUSE_S = (0.0, 6.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=None, help="default: a new one every time")
    parser.add_argument("--faults", type=int, default=36, help="on each back end")
    parser.add_argument("--minutes", type=float, default=20.0, help="at most, on each back end")
    parser.add_argument("--back-end", choices=BACK_ENDS, action="append", help="only these")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    runs, words = [], []
    for back_end in given.back_end or BACK_ENDS:
        try:
            run, findings = attack(back_end, seed=seed, faults=given.faults, minutes=given.minutes)
        except (StillhouseError, OutOfTime) as error:  # a program is missing, or the service does not even start
            sys.exit(f"{back_end}: {error}")
        except StopRequested as stop:
            sys.exit(stop.exit_status)
        runs.append(run)
        words += [f"{back_end}: {what}" for what in findings.words]
        print(json.dumps(run), flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"seed": seed, "runs": runs}, indent=2) + "\n")
    for line in words:
        print("BROKEN:", line)
    if words:
        sys.exit(f"{len(words)} promises were broken (seed {seed})")


def attack(back_end: str, *, seed: int, faults: int, minutes: float) -> tuple[dict[str, Any], Findings]:
    """One back end's run: its figures, and what is wrong with them. The service's logs stay if anything is."""
    kinds = list(drawn(back_end, count=faults, chance=random.Random(f"{seed} {back_end}")))
    people = random.Random(f"{seed} {back_end} people")
    folder = Path(tempfile.mkdtemp(prefix="stillhouse-chaos-"))
    ends_at = time.monotonic() + 60 * minutes
    done: Counter[str] = Counter()
    with open_house(back_end, folder) as house:
        teacher = make_tiny_model(folder / "teacher", layers=4, seed=1)
        life = Life(house, chance=people, teacher=teacher, rows=write_rows(folder / "rows.jsonl"), ends_at=ends_at)
        references = life.references()
        try:
            life.keep_busy()
            for number, kind in enumerate(kinds, start=1):
                chance = random.Random(f"{seed} {back_end} {number}")  # whatever happened before
                life.wait(chance.uniform(*_PAUSE_S))
                _tell(f"{number}. {kind}; {_summary(life)}")
                FAULTS[back_end][kind](life, chance)
                done[kind] += 1
            life.finish()
        except OutOfTime as error:
            _tell(str(error))
        findings = _findings(house, life, references)
    findings.add_each("orphans", evidence.processes_left(house.service.settings.home_folder))
    if not findings.words:
        shutil.rmtree(folder)
    else:
        _tell(f"logs are in {house.service.settings.home_folder / 'logs'}")
    run = {"backend": back_end, "faults": dict(sorted(done.items())), "jobs": len(life.accepted)}
    return run | {kind: findings.counts[kind] for kind in KINDS}, findings


def _findings(house: House, life: Life, references: Mapping[str, str]) -> Findings:
    courses = evidence.courses(house)
    undisturbed = {variant: evidence.course(house, job_id) for variant, job_id in references.items()}
    findings = judge(courses, variants=variants(life.jobs), references=undisturbed)
    for comparison_id in evidence.unfinished_comparisons(house.sessions):
        findings.add("lost", 1, f"{comparison_id} did not succeed")
    if not life.is_over:  # then some of what is there is not left behind
        return findings
    findings.add_each("orphans", evidence.trainings_left(house))
    settings = house.service.settings
    files = evidence.files_left(
        house.sessions,
        storage=house.storage,
        work_folder=settings.home_folder / "work",
        states=FolderCache(settings.teacher_states_folder, limit_bytes=settings.teacher_states_bytes),
    )
    findings.add_each("orphans", files)
    return findings


def _summary(life: Life) -> str:
    statuses = Counter(job.row.get("status", "not accepted") for job in life.jobs)
    return ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))


def _tell(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    main()
