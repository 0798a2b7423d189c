"""Which of the teacher's layers should a student keep? Every choice, before and after a short training.

    python -m benchmarks.layer_choice [--layers 10 16 22] [--steps 20] [--seeds 1] [--teacher MODEL]

Writes benchmarks/results/layers.json and docs/benchmarks/layers.md. Every student trains on the same rows in the same
order by plain forward KL (recipe `kd`), so that nothing but the layers differs. The demo's rows and teacher are the
default: a few hundred prompts answered by SmolLM2-135M-Instruct itself, which are also the references.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import torch
from rich.console import Console

from app.core.job_config import DistillConfig, FromTeacherStudent
from app.demo.teacher import find_teacher
from benchmarks.machine import describe
from worker.distill.trainer import distill

RESULTS = Path("benchmarks/results/layers.json")
DOCUMENT = Path("docs/benchmarks/layers.md")
ROWS = Path("app/demo/data.jsonl")
CHOICES: tuple[str, ...] = get_args(FromTeacherStudent.model_fields["choice"].annotation)
MEASURES = ("kl_ts", "rouge_l", "top1_agreement")


def describe_job(args: argparse.Namespace, *, layers: int, choice: str, seed: int) -> DistillConfig:
    return DistillConfig.model_validate(
        {
            "recipe": "kd",
            "teacher": {"model": args.teacher},
            "student": {"kind": "from_teacher", "layers": layers, "choice": choice},
            "data": {
                "kind": "file",
                "path": str(args.rows),
                "dev_rows": args.dev_rows,
                "max_prompt_tokens": 128,
                "max_response_tokens": 64,
            },
            "sampling": {"max_new_tokens": 48},
            "training": {
                "max_steps": args.steps,
                "batch_size": args.batch_size,
                "learning_rate": args.learning_rate,
                "seed": seed,
                "log_every": args.steps,
            },
            "evaluation": {
                "every_steps": args.steps,
                "rouge_rows": args.rouge_rows,
                "samples": 0,
                "select": "last",
            },
        }
    )


def measure(config: DistillConfig) -> dict[str, Any]:
    """One student: the measures before and after its training."""
    start = time.perf_counter()
    with TemporaryDirectory() as out:
        student = distill(config, out=Path(out), emit=lambda event: None, should_stop=lambda: None)
    assert isinstance(config.student, FromTeacherStudent)
    return {
        "layers": config.student.layers,
        "choice": config.student.choice,
        "seed": config.training.seed,
        "parameters": student.parameters,
        "seconds": round(time.perf_counter() - start, 1),
        **{when: {name: student.metrics[f"{when}/eval/{name}"] for name in MEASURES} for when in ("before", "after")},
    }


def best_choice(rows: Sequence[Mapping[str, Any]], when: str) -> dict[int, str]:
    """For every number of layers the choice with the lowest held-out KL, averaged over seeds."""
    best = {}
    for layers in dict.fromkeys(row["layers"] for row in rows):
        values = {choice: _mean(rows, layers, choice, when, "kl_ts") for choice in CHOICES}
        best[layers] = min(values, key=lambda choice: values[choice])
    return best


def document(result: Mapping[str, Any]) -> str:
    """The page, from what is in the result file."""
    rows, settings, machine = result["rows"], result["settings"], result["machine"]
    lines = []
    for layers, choice in product(dict.fromkeys(row["layers"] for row in rows), CHOICES):
        cells = [f"{_mean(rows, layers, choice, when, n):.3f}" for n in MEASURES for when in ("before", "after")]
        lines.append(f"| {layers} | `{choice}` | {' | '.join(cells)} |")
    first, last = best_choice(rows, "before"), best_choice(rows, "after")
    verdict = [
        f"- {layers} layers: `{first[layers]}` starts best, `{last[layers]}` is best after the training."
        for layers in first
    ]
    table, found = "\n".join(lines), "\n".join(verdict)
    return _PAGE.format(**settings, **machine, table=table, verdict=found, default=result["default"])


def _mean(rows: Sequence[Mapping[str, Any]], layers: int, choice: str, when: str, name: str) -> float:
    values = [row[when][name] for row in rows if (row["layers"], row["choice"]) == (layers, choice)]
    return sum(values) / len(values)


_PAGE = """\
# Which layers a student keeps

`python -m benchmarks.layer_choice` cuts {teacher} down by each rule, then trains every
student on the rows of `{rows}` with plain forward KL (recipe `kd`): {steps} steps of {batch_size} rows, learning rate
{learning_rate:g}, training seeds: {seeds}. Held out are {dev_rows} rows, for the KL (nats per token) and the agreement
on the likeliest token; {rouge_rows} of them are answered greedily for ROUGE-L against the rows' responses. So few rows
and steps tell how students start and how much of a head start is left, not how they end, and ROUGE-L only roughly.
{device}, {cpu}, {threads} thread(s). Figures: `benchmarks/results/layers.json`.

| layers | choice | KL before | after | ROUGE-L before | after | top-1 agreement before | after |
|---|---|---|---|---|---|---|---|
{table}

By KL(teacher ‖ student):

{verdict}

The default of `student.choice` is `{default}`.
"""


def write(args: argparse.Namespace, rows: Sequence[Mapping[str, Any]]) -> None:
    """Both files, from the working directory: the repository's root."""
    result = {
        "machine": describe("cuda" if torch.cuda.is_available() else "cpu"),
        "settings": vars(args) | {"teacher": Path(args.teacher).name, "rows": str(args.rows)},
        "default": FromTeacherStudent.model_fields["choice"].default,
        "rows": rows,
    }
    for path in (RESULTS, DOCUMENT):
        path.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    DOCUMENT.write_text(document(result), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[10, 16, 22])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--dev-rows", type=int, default=24)
    parser.add_argument("--rouge-rows", type=int, default=12)
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--teacher", help="the demo's, if left out")
    args = parser.parse_args()
    args.teacher = args.teacher or find_teacher()
    rows: list[dict[str, Any]] = []
    for layers, seed in product(args.layers, range(args.seeds)):
        for choice in CHOICES:
            rows.append(measure(describe_job(args, layers=layers, choice=choice, seed=seed)))
            Console().print(rows[-1])
        write(args, rows)  # whole comparisons only: a long run that is stopped leaves what it has
    print(DOCUMENT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
