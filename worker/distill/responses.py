"""Responses written by the teacher for rows that have none (or for all of them): sequence-level distillation.

Knows prompts and one model. Does not know students or training. As a program it completes a JSONL file:
`python -m worker.distill.responses --teacher MODEL rows.jsonl completed.jsonl`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch
from accelerate import Accelerator

from app.core.events import Emit, PhaseProgress
from worker.distill.data import PromptEncoder, Row
from worker.distill.generate import SamplingSettings, sample
from worker.distill.models import SplitModel, compute_dtype, end_of_text_ids, load_model, load_tokenizer
from worker.distill.response_file import ResponseFile, Written
from worker.distill.stopping import stop_if_asked
from worker.distill.types import ShouldStop


def write_responses(
    lm: SplitModel,
    prompts: Sequence[tuple[int, ...]],
    *,
    settings: SamplingSettings,
    batch_size: int,
    generator: torch.Generator,
    skip: int = 0,
) -> Iterator[Written]:
    """(index, response ids) of every prompt, in batches of prompts of like length (less padding).

    `skip` leaves out that many of the first, whole batches; the others are then the same, if nothing is left to chance.
    """
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for start in range(skip, len(order), batch_size):
        part = order[start : start + batch_size]
        state = sample(lm, [prompts[i] for i in part], settings=settings, generator=generator)
        yield from zip(part, state.responses(), strict=True)


def greedy(*, max_new_tokens: int, encoder: PromptEncoder, pad_id: int) -> SamplingSettings:
    """Settings without chance: held-out answers, and the teacher's responses [ours]."""
    return SamplingSettings(
        max_new_tokens=max_new_tokens, temperature=0, top_p=1, eos_ids=encoder.eos_ids, pad_id=pad_id
    )


def complete(
    rows: Sequence[Row],
    *,
    teacher: SplitModel,
    encoder: PromptEncoder,
    settings: SamplingSettings,
    batch_size: int,
    generator: torch.Generator,
    emit: Emit,
    should_stop: ShouldStop,
    kept: ResponseFile | None = None,
) -> list[Row]:
    """`rows` with a response in every one; the teacher writes those that are missing and not in `kept`, which it gets.

    Raises Cancelled or Paused between batches once `should_stop()` says so.
    """
    missing = [i for i, row in enumerate(rows) if row.response_ids is None]
    completed = list(rows)
    known = kept.read() if kept and missing else []
    if len(known) < len(missing):
        known = known[: len(known) // batch_size * batch_size]  # a batch written anew is not padded otherwise
    if kept and missing:
        kept.begin(known)
    written = write_responses(
        teacher,
        [rows[i].prompt_ids for i in missing],
        settings=settings,
        batch_size=batch_size,
        generator=generator,
        skip=len(known),
    )
    batch: list[Written] = []
    for done, (k, response_ids) in enumerate(chain(known, written), start=1):
        i = missing[k]
        reference = rows[i].reference or encoder.text(response_ids)
        completed[i] = replace(rows[i], response_ids=response_ids, reference=reference)
        batch.append((k, response_ids))
        if done % batch_size == 0 or done == len(missing):
            if kept and done > len(known):
                kept.add(batch)
            batch = []
            emit(PhaseProgress(phase="teacher_responses", done=done, total=len(missing)))
            stop_if_asked(should_stop, "while the teacher was writing responses")
    return completed


def main() -> None:
    """Completes a file of canonical rows, or of `{"prompt": ...}` rows, with the teacher's responses.

    Greedy first; a response that does not end within --max-new-tokens is sampled again at temperature 0.7, and left
    out if that does not help: read back as text, it would be taught as if it ended where it was cut.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--retries", type=int, default=4)
    args = parser.parse_args()
    device = Accelerator().device
    model = load_model(args.teacher, device=device, dtype=compute_dtype("auto", device))
    tokenizer = load_tokenizer(args.teacher)
    encoder = PromptEncoder(tokenizer, template="chat", eos_ids=end_of_text_ids(model, tokenizer))
    raw = [json.loads(line) for line in args.source.read_text(encoding="utf-8").splitlines() if line.strip()]
    messages = [row.get("messages") or [{"role": "user", "content": row["prompt"]}] for row in raw]
    rows = _write_until_ended(
        [Row(i, m[-1]["content"], encoder.prompt(m), None, None) for i, m in enumerate(messages, start=1)],
        teacher=SplitModel(model, vocabulary_size=len(tokenizer)),
        encoder=encoder,
        settings=greedy(max_new_tokens=args.max_new_tokens, encoder=encoder, pad_id=tokenizer.pad_token_id or 0),
        batch_size=args.batch_size,
        retries=args.retries,
    )
    lines = [
        json.dumps({"messages": m, "response": row.reference}, ensure_ascii=False)
        for m, row in zip(messages, rows, strict=True)
        if row.reference and _ended(row, encoder)
    ]
    args.target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} of {len(rows)} rows written; the others had not ended at --max-new-tokens")


def _write_until_ended(
    rows: list[Row],
    *,
    teacher: SplitModel,
    encoder: PromptEncoder,
    settings: SamplingSettings,
    batch_size: int,
    retries: int,
) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(1 + retries):
        rows = complete(
            [row if _ended(row, encoder) else replace(row, response_ids=None, reference=None) for row in rows],
            teacher=teacher,
            encoder=encoder,
            settings=settings,
            batch_size=batch_size,
            generator=generator,
            emit=lambda event: print(event, flush=True),
            should_stop=lambda: None,
        )
        settings = replace(settings, temperature=0.7)
    return rows


def _ended(row: Row, encoder: PromptEncoder) -> bool:
    return row.response_ids is not None and row.response_ids[-1] in encoder.eos_ids


if __name__ == "__main__":
    main()
