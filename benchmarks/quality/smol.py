"""The scale `smol`: a published teacher, a student of ten of its layers, and data by path, on any device torch sees.

Knows files of `{"prompt", "response"}` rows and the job descriptions of this scale. Does not know the closed world. The
student is cut from the teacher and fine-tuned on the labelled rows first (a warm-up phase of every job alike).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from app.core.folder_cache import FolderCache
from app.core.job_config import DistillConfig
from app.core.teacher_states import DEFAULT_LIMIT_GIB
from benchmarks.quality import contenders
from benchmarks.quality.contenders import responses_of
from benchmarks.quality.measuring import Exam, train_and_measure
from benchmarks.quality.plan import Plan
from benchmarks.quality.records import Run
from worker.distill.assembly import Assembly, assemble
from worker.distill.data import Row
from worker.distill.models import load_tokenizer

LABELLED = 300  # rows that keep their response in the regime of few labels
LAYERS = 10
_TEMPLATE = 64  # tokens that a chat template adds at most: rows whose prompts are too long are left out


@dataclass(frozen=True)
class SmolSizes:
    teacher: str
    data: Path
    evaluate: tuple[Path, ...]
    rows: int
    layers: int = LAYERS
    labelled: int = LABELLED
    dev_rows: int = 64
    warmup_steps: int = 300
    batch_size: int = 16
    max_prompt_tokens: int = 384
    max_response_tokens: int = 128

    @property
    def limits(self) -> dict[str, int]:
        return {"max_prompt_tokens": self.max_prompt_tokens, "max_response_tokens": self.max_response_tokens}


def plan_and_execute(
    args: argparse.Namespace,
) -> tuple[Plan, Callable[[Run], Mapping[str, Any]], Mapping[str, Any]]:
    """What `benchmarks.quality.__main__` needs to know of this scale."""
    if not args.data or not args.evaluate:
        raise SystemExit("--scale smol needs --data FILE and --evaluate FILE...")
    steps = args.steps or 1000
    sizes = SmolSizes(args.teacher, args.data, tuple(args.evaluate), args.rows, warmup_steps=min(300, steps))
    bench = SmolBench(sizes, folder=args.cache / "smol")
    plan = Plan(
        scale="smol",
        regimes=("few_labels", "many_labels"),
        leaders=[*contenders.baselines(), contenders.ours()],
        ablations=[],
        controls=[],
        learning_rates=(1e-4,),
        steps=steps,
        sweep_steps=steps,
        seeds=args.seeds or 3,
        time_seeds=0,
        control_seeds=0,
    )
    about = {
        "teacher": args.teacher,
        "layers": sizes.layers,
        "data": args.data.name,
        "evaluate": [path.name for path in args.evaluate],
        "rows": args.rows,
        "labelled": sizes.labelled,
        "warmup_steps": sizes.warmup_steps,
        "batch_size": sizes.batch_size,
    }
    return plan, bench.execute, about


class SmolBench:
    """Every run is a job of its own, assembled by the engine from files in `folder`."""

    def __init__(self, sizes: SmolSizes, *, folder: Path) -> None:
        self._sizes = sizes
        self._folder = folder
        # The teacher writes and reads once for all runs whose loss reads it.
        self._states = FolderCache(folder / "teacher-states", limit_bytes=DEFAULT_LIMIT_GIB * 2**30)

    def execute(self, run: Run) -> Mapping[str, Any]:
        assembly = assemble(self.config(run), emit=lambda event: None, should_stop=lambda: None, states=self._states)
        return train_and_measure(assembly, self._exam(assembly))

    def config(self, run: Run) -> DistillConfig:
        sizes, sections = self._sizes, run.contender.sections
        data = {"kind": "file", "path": str(self._files[run.regime]), "dev_rows": sizes.dev_rows, **sizes.limits}
        data["responses"] = responses_of(run.contender)
        described = DistillConfig.model_validate(
            {
                **sections,
                "teacher": {"model": sizes.teacher},
                "student": {"kind": "from_teacher", "layers": sizes.layers},
                "data": {**sections.get("data", {}), **data},
                "warmup": {"student_sft_steps": sizes.warmup_steps},
                "training": {
                    "max_steps": run.steps,
                    "batch_size": sizes.batch_size,
                    "learning_rate": run.learning_rate,
                    "seed": run.seed,
                },
                "evaluation": {"every_steps": 100, "select": "last", "rouge_rows": 0, "samples": 0},
            }
        )
        limit = described.sampling.model_dump() | {"max_new_tokens": sizes.max_response_tokens}
        return DistillConfig.model_validate(described.model_dump() | {"sampling": limit})

    @cached_property
    def _files(self) -> Mapping[str, Path]:
        """The data of each regime: the last rows (held out for dev) and, with few labels, the first have responses."""
        tokenizer = load_tokenizer(self._sizes.teacher)
        rows = [
            row
            for row in _canonical(self._sizes.data)
            if len(tokenizer(row["messages"][-1]["content"]).input_ids) < self._sizes.max_prompt_tokens - _TEMPLATE
        ]
        if len(rows) <= self._sizes.dev_rows:
            raise SystemExit(f"--data needs more than {self._sizes.dev_rows} rows with prompts that fit")
        last = len(rows) - self._sizes.dev_rows
        few = [
            row if i < self._sizes.labelled or i >= last else {**row, "response": None} for i, row in enumerate(rows)
        ]
        return {
            regime: _write(self._folder / f"{regime}.jsonl", of)
            for regime, of in (("few_labels", few), ("many_labels", rows))
        }

    def _exam(self, run: Assembly) -> Exam:
        """The rows of all evaluation files; those without an answer of their own are measured where none is needed."""
        sizes, encoder = self._sizes, run.encoder
        rows: list[Row] = []
        for path in sizes.evaluate:
            for row in _canonical(path)[: sizes.rows]:
                prompt_ids = encoder.prompt(row["messages"])
                if len(prompt_ids) <= sizes.max_prompt_tokens:
                    answer = row["response"]
                    ids = encoder.response(answer or "", max_tokens=sizes.max_response_tokens)
                    rows.append(Row(len(rows) + 1, row["messages"][-1]["content"], prompt_ids, answer, ids))
        settings = replace(run.settings, temperature=1.0, top_p=1.0)
        return Exam(
            run.teacher,
            encoder,
            settings,
            rows,
            sampled_rows=min(64, len(rows)),
            batch_size=sizes.batch_size,
            exact_match=False,
            temperatures=(0.7, 1.0),
        )


def _canonical(path: Path) -> list[dict[str, Any]]:
    """Rows with messages and a response (or None), of canonical lines or of `{"prompt", "response"}` lines."""
    raw = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [
        {
            "messages": row.get("messages") or [{"role": "user", "content": row["prompt"]}],
            "response": row.get("response"),
        }
        for row in raw
    ]


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
