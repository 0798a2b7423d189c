"""The teacher's last hidden states of the data's rows, computed once for all runs that would compute the same bits.

Knows rows, one model and a cache of folders. Does not know students, losses or training batches.

What is kept is a run's whole set, not rows: how a state is rounded depends on what shares a batch with it. The key
names everything that decides the bits, so a run trains on the same ones whether it computes them or finds them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from app.core.events import Warned
from app.core.folder_cache import FolderCache
from app.core.job_config import DistillConfig
from app.core.teacher_states import worth_keeping
from worker.distill.data import Row
from worker.distill.disk import free_bytes, telling_disk_full
from worker.distill.export import weights_sha256
from worker.distill.models import SplitModel
from worker.distill.responses import Writing, answered
from worker.distill.state_file import StateFile, check_states, load_states

FORMAT = 1
_FREE_SHARE = 0.9  # of the free space: checkpoints need some too

Loaded = list[tuple[tuple[int, ...], Tensor]]


def rows_with_states(rows: Sequence[Row], config: DistillConfig) -> list[int]:
    """Which of `rows` a run keeps states of: those that the data's batches are made of, and held-out ones that the
    teacher writes for, since it does so in the same batches."""
    first_held_out = len(rows) - config.data.dev_rows
    for_students = config.data.responses == "student"
    return [
        i
        for i, row in enumerate(rows)
        if (not for_students or i >= first_held_out if row.response_ids is None else i < first_held_out)
    ]


def keeps_states(
    rows: Sequence[Row], config: DistillConfig, *, teacher: PreTrainedModel, dtype: torch.dtype, cache: FolderCache
) -> bool | Warned:
    """Whether a run on `rows` is to keep them; a warning where it is not because they would take too much space."""
    chosen = [rows[i] for i in rows_with_states(rows, config)]
    if not worth_keeping(config, rows_to_read=sum(row.response_ids is not None for row in chosen)):
        return False
    limit = config.data.max_response_tokens
    tokens = sum(limit if row.response_ids is None else len(row.response_ids) for row in chosen)
    needed = tokens * _width(teacher, split=config.training.logits == "chunked") * dtype.itemsize
    cache.folder.mkdir(parents=True, exist_ok=True)
    room = min(cache.limit_bytes, int(free_bytes(cache.folder) * _FREE_SHARE))
    if needed <= room:
        return True
    message = (
        f"the teacher's states of the data may take {needed / 2**30:,.1f} GiB and {room / 2**30:,.1f} GiB are there "
        f"for them, so the teacher reads at every step; give {cache.folder} more room, or set data.teacher_states to "
        "off"
    )
    return Warned(code="teacher_states_too_large", message=message)


def with_states(
    rows: Sequence[Row], chosen: Sequence[int], *, writing: Writing, cache: FolderCache, scratch: Path | None
) -> list[Row]:
    """`rows` where the `chosen` ones have a response and the teacher's states, as `cache` has them or from the teacher.

    `scratch` is a folder of the run's own for what is not complete; another attempt goes on with it. Raises Cancelled,
    Paused and DiskFull.
    """
    missing = [i for i in chosen if rows[i].response_ids is None]
    given = [i for i in chosen if rows[i].response_ids is not None]
    key = states_key([rows[i] for i in chosen], writing)
    loaded = _found(cache, key, writing)
    if loaded is None:
        loaded = _made([rows[i] for i in missing], [rows[i] for i in given], writing, cache, key, scratch)
    completed = list(rows)
    for i, (response_ids, teacher_TD) in zip([*missing, *given], loaded, strict=True):
        completed[i] = answered(rows[i], response_ids, writing.encoder, teacher_TD=teacher_TD)
    return completed


def states_key(rows: Sequence[Row], writing: Writing) -> str:
    """A name of everything that decides the bits of the responses and their states."""
    lm, settings = writing.teacher, writing.settings
    device = lm.device
    decides: dict[str, Any] = {
        "format": FORMAT,
        "weights": weights_sha256(lm.model),
        "model": lm.model.config.to_dict() | {"_name_or_path": None},
        "attention": getattr(lm.model.config, "_attn_implementation", None),
        "passes": [lm.is_split, lm.lean is not None, lm.vocabulary_size],
        "type": str(lm.model.dtype),
        "device": [device.type, torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()],
        "versions": [torch.__version__, transformers.__version__],
        "batch_size": writing.batch_size,
        "max_new_tokens": settings.max_new_tokens,
        "ends": [sorted(settings.eos_ids), settings.pad_id],
    }
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode())
    for row in rows:
        digest.update(repr((row.prompt_ids, row.response_ids)).encode())
    return digest.hexdigest()


def _processor() -> list[Any]:
    return [torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()]


def _width(model: PreTrainedModel, *, split: bool) -> int:
    """Numbers of a state: what the head reads, or what it gives where body and head are one."""
    weight = getattr(model.get_output_embeddings(), "weight", None)
    if weight is None:
        return int(model.config.get_text_config().vocab_size)
    return int(weight.shape[1 if split else 0])


def _layout(lm: SplitModel) -> dict[str, Any]:
    return {"width": _width(lm.model, split=lm.is_split), "dtype": lm.model.dtype}


def _found(cache: FolderCache, key: str, writing: Writing) -> Loaded | None:
    folder = cache.find(key)
    if folder is None:
        return None
    try:
        check_states(folder)
        return load_states(folder, about=key, **_layout(writing.teacher))
    except ValueError as error:
        message = f"the kept states of the teacher in {folder} are computed again: {error}"
        writing.emit(Warned(code="teacher_states_altered", message=message))
        cache.remove(key)
        return None


def _made(
    missing: Sequence[Row], given: Sequence[Row], writing: Writing, cache: FolderCache, key: str, scratch: Path | None
) -> Loaded:
    """What the teacher writes, and then what it reads; loaded before others may remove it."""
    folder = scratch or cache.scratch()
    layout = _layout(writing.teacher)
    try:
        file = StateFile(folder, about=key, **layout)
        _fill(file, missing, given, writing)
        file.finish()
        loaded = load_states(folder, about=key, **layout)
        with telling_disk_full("the teacher's states", cache.folder):
            cache.put(folder, key)
        return loaded
    finally:
        if scratch is None:
            shutil.rmtree(folder, ignore_errors=True)


def _fill(file: StateFile, missing: Sequence[Row], given: Sequence[Row], writing: Writing) -> None:
    known = file.read()
    written = writing.whole_batches(known[: len(missing)], len(missing))
    read = writing.whole_batches(known[len(missing) :], len(given))
    file.begin([*written, *read])
    batches = writing.write(missing, skip=len(written))
    for said in writing.told("teacher_responses", batches, known=len(written), total=len(missing)):
        file.add(said.written, said.states_ND)
    batches = writing.read(given, skip=len(read))
    for said in writing.told("teacher_states", batches, known=len(read), total=len(given)):
        file.add([(len(missing) + k, ids) for k, ids in said.written], said.states_ND)
