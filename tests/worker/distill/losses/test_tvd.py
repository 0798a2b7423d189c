import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.core.loss_config import TvdLoss
from tests.worker.distill.loss_cases import make_inputs, random_inputs
from worker.distill.losses.tvd import Tvd

P, Q = torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.1, 0.3, 0.6]]).log()


def test_a_hand_computed_distance():
    # 1/2 (0.4 + 0.05 + 0.35)
    assert Tvd(TvdLoss())(make_inputs(Q, P)).total.item() == pytest.approx(0.4)


@given(seed=st.integers(0, 10**6))
def test_it_is_a_probability(seed):
    assert 0 <= Tvd(TvdLoss())(random_inputs(seed, m=1)).total <= 1 + 1e-6
