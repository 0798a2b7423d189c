"""The cache: appended and rewound columns give what a fresh pass over the visible tokens gives."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from worker.distill.decoder import Decoder, keeps_every_column
from worker.distill.generate import pad_left
from worker.distill.models import SplitModel, load_model

CPU = torch.device("cpu")


def alone(lm: SplitModel, ids: list[int]) -> torch.Tensor:
    """Last hidden state of one sequence without cache, padding or batch."""
    with torch.no_grad():
        return lm.hidden(torch.tensor([ids]))[0, -1]


@pytest.mark.parametrize("way", ["lean", "plain", "prefill again"])
def test_any_order_of_appends_steps_and_rewinds_equals_a_fresh_pass(
    student_lm: SplitModel, plain_student_lm: SplitModel, way: str
) -> None:
    rng = random.Random(7)
    rows = [[rng.randrange(3, 320) for _ in range(n)] for n in (5, 1, 3)]
    lm = plain_student_lm if way == "plain" else student_lm
    decoder = Decoder(lm, rows=3, reuse=way != "prefill again", columns=4)  # too few: a lean cache grows
    decoder.append(*pad_left(rows, pad_id=0, device=CPU))
    for _ in range(24):
        if rng.random() < 0.4:
            lengths = [rng.randint(1, len(row) + 1) for row in rows]
            decoder.rewind(torch.tensor(lengths))
            rows = [row[:n] for row, n in zip(rows, lengths, strict=True)]
        if rng.random() < 0.5:
            some = rng.sample(range(3), rng.randint(1, 3))
            for b in some:
                rows[b].append(rng.randrange(3, 320))
            hidden_AD = decoder.step(torch.tensor([rows[b][-1] for b in some]), some)
            for state, b in zip(hidden_AD, some, strict=True):
                torch.testing.assert_close(state, alone(student_lm, rows[b]), atol=2e-4, rtol=1e-3)
            continue
        width = rng.randint(1, 3)
        new_B3 = torch.tensor([[rng.randrange(3, 320) for _ in range(width)] for _ in rows])
        visible_B3 = torch.tensor([[rng.random() < 0.7 for _ in range(width)] for _ in rows])
        hidden_BTD = decoder.append(new_B3, visible_B3)
        for b, row in enumerate(rows):
            for t in range(width):
                if visible_B3[b, t]:
                    row.append(int(new_B3[b, t]))
                    torch.testing.assert_close(hidden_BTD[b, t], alone(student_lm, row), atol=2e-4, rtol=1e-3)
        assert decoder.length_B.tolist() == [len(row) for row in rows]


def test_rewinding_costs_no_second_prefill(student_lm: SplitModel) -> None:
    computed = {}
    for reuse in (True, False):
        decoder = Decoder(student_lm, rows=1, reuse=reuse)
        decoder.append(*pad_left([[4, 5, 6, 7, 8, 9]], pad_id=0, device=CPU))
        decoder.rewind(torch.tensor([4]))
        decoder.append(torch.tensor([[11]]), torch.tensor([[True]]))
        computed[reuse] = decoder.tokens_computed
    assert computed == {True: 7, False: 11}


def test_models_that_count_columns_prefill_again(gemma_folder: Path, student_lm: SplitModel) -> None:
    assert keeps_every_column(student_lm)
    gemma = SplitModel(load_model(str(gemma_folder), device=CPU), vocabulary_size=320)
    assert not keeps_every_column(gemma)  # sliding windows see hidden columns
    decoder = Decoder(gemma, rows=1)
    decoder.append(*pad_left([[4, 5, 6, 7]], pad_id=0, device=CPU))
    decoder.rewind(torch.tensor([2]))
    hidden_BTD = decoder.append(torch.tensor([[9]]), torch.tensor([[True]]))
    torch.testing.assert_close(hidden_BTD[0, -1], alone(gemma, [4, 5, 9]), atol=2e-4, rtol=1e-3)
