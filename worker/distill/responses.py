"""The teacher over rows: it writes the responses that are missing, and reads those that are there for their states.

Knows prompts, responses and one model. Does not know students or training. As a program it completes a JSONL file:
`python -m worker.distill.responses --teacher MODEL rows.jsonl completed.jsonl`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

import torch
from accelerate import Accelerator
from torch import Tensor

from app.core.events import Emit, PhaseProgress
from worker.distill.data import PromptEncoder, Row, ground_truth
from worker.distill.evaluate import response_states
from worker.distill.generate import SamplingSettings, sample
from worker.distill.models import SplitModel, compute_dtype, end_of_text_ids, load_model, load_tokenizer
from worker.distill.response_file import ResponseFile, Written
from worker.distill.stopping import stop_if_asked
from worker.distill.types import ShouldStop, TokenSequence, make_batch

Stretch = Literal["teacher_responses", "teacher_states"]
WHILE: Mapping[Stretch, str] = {
    "teacher_responses": "while the teacher was writing responses",
    "teacher_states": "while the teacher was reading the data",
}


@dataclass(frozen=True)
class Said:
    """One batch of responses, and the states [N, D] that predict their tokens, response behind response."""

    written: list[Written]
    states_ND: Tensor


def write_batches(
    lm: SplitModel,
    prompts: Sequence[tuple[int, ...]],
    *,
    settings: SamplingSettings,
    batch_size: int,
    generator: torch.Generator,
    skip: int = 0,
) -> Iterator[Said]:
    """A response to every prompt, in batches of prompts of like length (less padding).

    `skip` leaves out that many of the first, whole batches; the others are then the same, if nothing is left to chance.
    """
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for start in range(skip, len(order), batch_size):
        part = order[start : start + batch_size]
        state = sample(lm, [prompts[i] for i in part], settings=settings, generator=generator)
        yield Said(list(zip(part, state.responses(), strict=True)), state.hidden_BTD[state.valid_BT()])


def write_responses(
    lm: SplitModel,
    prompts: Sequence[tuple[int, ...]],
    *,
    settings: SamplingSettings,
    batch_size: int,
    generator: torch.Generator,
) -> Iterator[Written]:
    """(index, response ids) of every prompt, batch by batch."""
    batches = write_batches(lm, prompts, settings=settings, batch_size=batch_size, generator=generator)
    return chain.from_iterable(said.written for said in batches)


@torch.no_grad()
def read_batches(
    lm: SplitModel, sequences: Sequence[TokenSequence], *, batch_size: int, pad_id: int, skip: int = 0
) -> Iterator[Said]:
    """Responses that are there already, with the states of a pass over prompts and responses, in batches of like
    length; `skip` as in `write_batches`."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i].prompt_ids) + len(sequences[i].response_ids))
    for start in range(skip, len(order), batch_size):
        part = order[start : start + batch_size]
        batch = make_batch([sequences[i] for i in part], pad_id=pad_id, device=lm.device)
        yield Said([(i, sequences[i].response_ids) for i in part], response_states(lm, batch))


def greedy(*, max_new_tokens: int, encoder: PromptEncoder, pad_id: int) -> SamplingSettings:
    """Settings without chance: held-out answers, and the teacher's responses [ours]."""
    return SamplingSettings(
        max_new_tokens=max_new_tokens, temperature=0, top_p=1, eos_ids=encoder.eos_ids, pad_id=pad_id
    )


@dataclass(frozen=True, kw_only=True)
class Writing:
    """How the teacher goes through rows: batch by batch, telling how far it is.

    Between batches it raises Cancelled or Paused once `should_stop()` says so.
    """

    teacher: SplitModel
    encoder: PromptEncoder
    settings: SamplingSettings
    batch_size: int
    generator: torch.Generator
    emit: Emit
    should_stop: ShouldStop

    def write(self, rows: Sequence[Row], *, skip: int = 0) -> Iterator[Said]:
        return write_batches(
            self.teacher,
            [row.prompt_ids for row in rows],
            settings=self.settings,
            batch_size=self.batch_size,
            generator=self.generator,
            skip=skip,
        )

    def read(self, rows: Sequence[Row], *, skip: int = 0) -> Iterator[Said]:
        pad_id = self.settings.pad_id
        return read_batches(self.teacher, ground_truth(rows), batch_size=self.batch_size, pad_id=pad_id, skip=skip)

    def whole_batches(self, known: list[Written], total: int) -> list[Written]:
        """The first of `known` that are whole batches of a stretch of `total` responses: a batch that is begun anew is
        not padded otherwise."""
        return known if len(known) >= total else known[: len(known) // self.batch_size * self.batch_size]

    def told(self, phase: Stretch, batches: Iterator[Said], *, known: int, total: int) -> Iterator[Said]:
        """`batches`, which follow `known` responses of `total`."""
        for done in range(self.batch_size, known + self.batch_size, self.batch_size):
            self._tell(phase, min(done, known), total)
        for said in batches:
            known += len(said.written)
            yield said
            self._tell(phase, known, total)

    def _tell(self, phase: Stretch, done: int, total: int) -> None:
        self.emit(PhaseProgress(phase=phase, done=done, total=total))
        stop_if_asked(self.should_stop, WHILE[phase])


def complete(rows: Sequence[Row], *, writing: Writing, kept: ResponseFile | None = None) -> list[Row]:
    """`rows` with a response in every one; the teacher writes those that are missing and not in `kept`, which gets
    them. Raises Cancelled and Paused."""
    missing = [i for i, row in enumerate(rows) if row.response_ids is None]
    completed = list(rows)
    known = writing.whole_batches(kept.read() if kept and missing else [], len(missing))
    if kept and missing:
        kept.begin(known)
    batches = writing.write([rows[i] for i in missing], skip=len(known))
    written = [known]
    for said in writing.told("teacher_responses", batches, known=len(known), total=len(missing)):
        written.append(said.written)
        if kept:
            kept.add(said.written)
    for k, response_ids in chain.from_iterable(written):
        completed[missing[k]] = answered(rows[missing[k]], response_ids, writing.encoder)
    return completed


def answered(
    row: Row, response_ids: tuple[int, ...], encoder: PromptEncoder, *, teacher_TD: Tensor | None = None
) -> Row:
    """The row with a response; it is what answers are measured against too, if the data has none."""
    reference = row.reference or encoder.text(response_ids)
    return replace(row, response_ids=response_ids, reference=reference, teacher_TD=teacher_TD)


def labelled(rows: Sequence[Row], batches: Iterator[Said], encoder: PromptEncoder) -> list[Row]:
    """`rows` with what the teacher said of each: responses, and its states in memory."""
    done = list(rows)
    for said in batches:
        parts_TD = said.states_ND.split([len(response_ids) for _, response_ids in said.written])
        for (k, response_ids), teacher_TD in zip(said.written, parts_TD, strict=True):
            done[k] = answered(rows[k], response_ids, encoder, teacher_TD=teacher_TD)
    return done


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
        writing=Writing(
            teacher=SplitModel(model, vocabulary_size=len(tokenizer)),
            encoder=encoder,
            settings=greedy(max_new_tokens=args.max_new_tokens, encoder=encoder, pad_id=tokenizer.pad_token_id or 0),
            batch_size=args.batch_size,
            generator=torch.Generator().manual_seed(0),
            emit=lambda event: print(event, flush=True),
            should_stop=lambda: None,
        ),
        retries=args.retries,
    )
    lines = [
        json.dumps({"messages": m, "response": row.reference}, ensure_ascii=False)
        for m, row in zip(messages, rows, strict=True)
        if row.reference and _ended(row, encoder)
    ]
    args.target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} of {len(rows)} rows written; the others had not ended at --max-new-tokens")


def _write_until_ended(rows: list[Row], *, writing: Writing, retries: int) -> list[Row]:
    for _ in range(1 + retries):
        rows = complete(
            [row if _ended(row, writing.encoder) else replace(row, response_ids=None, reference=None) for row in rows],
            writing=writing,
        )
        writing = replace(writing, settings=replace(writing.settings, temperature=0.7))
    return rows


def _ended(row: Row, encoder: PromptEncoder) -> bool:
    return row.response_ids is not None and row.response_ids[-1] in encoder.eos_ids


if __name__ == "__main__":
    main()
