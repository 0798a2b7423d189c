import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from app.core.loss_config import DacKlLoss
from tests.worker.distill.loss_cases import make_inputs
from worker.distill.losses.dac_kl import DacKl

# Teacher (1/2, 1/4, 1/8, 1/8), student uniform, two classes: the classes are 1/2, 1/4 and a bucket of 1/4 for the
# teacher, 1/4, 1/4 and 1/2 for the student. Middles beside the target: 0.625 and 0.875, so bounds (0, 0.75) keep the
# second class and drop the bucket.
P, Q = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log(), torch.full((1, 4), 0.25).log()
HARD = {"top_k": 2, "kappa": 1e4, "subnet_objective": "fixed", "fixed_lower": 0.0, "quantiles": "all"}
TARGET = 0.5 * math.log(2)  # 1/2 log((1/2) / (1/4))


def dac(**settings_) -> tuple[float, dict[str, float]]:
    output = DacKl(DacKlLoss(**HARD | settings_))(make_inputs(Q, P))
    return output.total.item(), {name: value.item() for name, value in output.stats.items()}


@pytest.mark.parametrize(
    ("normalise", "expected"),
    [
        ("none", TARGET),  # + 1/4 log(1) for the second class
        ("rest_bucket", TARGET + 0.25 * math.log(0.5)),  # the dropped bucket: 1/4 log((1/4) / (1/2))
        # kept masses 3/4 and 1/2: 2/3 log((2/3) / (1/2)) + 1/3 log((1/3) / (1/2))
        ("renorm", 2 / 3 * math.log(4 / 3) + 1 / 3 * math.log(2 / 3)),
    ],
)
def test_a_hand_computed_divergence(normalise, expected):
    assert dac(normalise=normalise, fixed_upper=0.75)[0] == pytest.approx(expected, abs=1e-6)


def test_quantiles_beside_the_target_by_hand():
    """The same classes by the mass beside the target: shares 1/2 and 1/2, middles 1/4 and 3/4. So (0, 1/2) keeps the
    second class and drops the bucket, which by all the mass (0, 3/4) does and (0, 1/2) does not."""
    total, stats = dac(fixed_upper=0.5, quantiles="beside_target")
    assert total == pytest.approx(TARGET + 0.25 * math.log(0.5), abs=1e-6)
    assert (stats["kept_mass"], stats["kept_mass_beside_target"]) == pytest.approx((0.75, 0.5), abs=1e-6)
    assert dac(fixed_upper=0.5)[1]["floor_held"] == 1


@pytest.mark.parametrize(
    ("divergence", "expected"),
    [
        # KL(q || p) of (1/4, 1/4, rest 1/2) and (1/2, 1/4, rest 1/4)
        ("reverse", 0.25 * math.log(1 / 2) + 0.5 * math.log(2)),
        # alpha 1/2: the mixture is (3/8, 1/4, rest 3/8) both ways
        ("skew", 0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3)),
        ("skew_reverse", 0.25 * math.log(2 / 3) + 0.5 * math.log(4 / 3)),
    ],
)
def test_other_divergences_are_clipped_the_same_way(divergence, expected):
    total, stats = dac(fixed_upper=0.75, divergence=divergence, alpha=0.5)
    assert total == pytest.approx(expected, abs=1e-6)
    assert stats["kept_mass"] == pytest.approx(0.75, abs=1e-6)  # the mask is the teacher's whatever is clipped


def test_the_stats_say_what_is_kept():
    _, stats = dac(fixed_upper=0.75)
    assert stats == pytest.approx(
        {
            "lower": 0,
            "upper": 0.75,
            "kept_mass": 0.75,
            "kept_mass_beside_target": 0.5,
            "kept_classes": 2,
            "floor_held": 0,
        },
        abs=1e-6,
    )


def test_the_floor_is_on_the_mass_beside_the_target_and_says_that_it_held():
    # Bounds (0, 0.5) keep the target only. Its 0.5 of the mass would satisfy a floor of 0.2 on the total; the floor
    # keeps 0.2 of each class beside it: 0.5 + 0.2 * 0.5 = 0.6 of the mass, 1.4 classes.
    total, stats = dac(fixed_upper=0.5, min_kept_mass=0.2, normalise="none")
    assert stats["floor_held"] == 1
    assert stats["kept_mass"] == pytest.approx(0.6)
    assert stats["kept_mass_beside_target"] == pytest.approx(0.2)
    assert stats["kept_classes"] == pytest.approx(1.4)
    assert total == pytest.approx(TARGET + 0.2 * (0.25 * math.log(1) + 0.25 * math.log(0.5)))


def test_the_literal_form_can_be_negative_and_the_others_not():
    # The student holds less than the teacher nowhere but in the dropped bucket: 0.6 > 0.5 and 0.35 > 0.25.
    student = torch.tensor([[0.6, 0.35, 0.025, 0.025]]).log()
    values = {
        normalise: DacKl(DacKlLoss(**HARD, normalise=normalise, fixed_upper=0.75))(make_inputs(student, P)).total.item()
        for normalise in ("none", "renorm", "rest_bucket")
    }
    assert values["none"] == pytest.approx(0.5 * math.log(5 / 6) + 0.25 * math.log(5 / 7), abs=1e-6)
    assert values["none"] < 0 <= min(values["renorm"], values["rest_bucket"])


# --- against a plain re-implementation ----------------------------------------------------------------------


def naive_dac_kl(p: list[float], q: list[float], *, lower: float, upper: float, config: DacKlLoss) -> float:
    """One position, in double, with loops, subtractions and no logarithms of sums."""
    order = sorted(range(len(p)), key=lambda v: -p[v])
    top, others = order[: config.top_k], order[config.top_k :]
    p_classes, q_classes = [p[v] for v in top], [q[v] for v in top]
    if others:
        p_classes.append(sum(p[v] for v in others))
        q_classes.append(sum(q[v] for v in others))
    beside = sum(p_classes[1:])
    kept, before, whole = [1.0], *((p_classes[0], 1.0) if config.quantiles == "all" else (0.0, beside))
    for mass in p_classes[1:]:
        x = (before + mass / 2) / whole
        before += mass
        kept.append(1 / (1 + math.exp(-config.kappa * (x - lower))) / (1 + math.exp(-config.kappa * (upper - x))))
    share = sum(m * mass for m, mass in zip(kept[1:], p_classes[1:], strict=True)) / beside
    if share < config.min_kept_mass:
        lift = (config.min_kept_mass - share) / (1 - share)
        kept = [1.0] + [m + lift * (1 - m) for m in kept[1:]]
    p_kept = [m * mass for m, mass in zip(kept, p_classes, strict=True)]
    q_kept = [m * mass for m, mass in zip(kept, q_classes, strict=True)]
    if config.normalise == "renorm":
        p_kept, q_kept = [x / sum(p_kept) for x in p_kept], [x / sum(q_kept) for x in q_kept]
    if config.normalise == "rest_bucket":
        p_kept, q_kept = [*p_kept, 1 - sum(p_kept)], [*q_kept, 1 - sum(q_kept)]
    return sum(a * math.log(a / b) for a, b in zip(p_kept, q_kept, strict=True) if a > 0)


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(3, 12),
    top_k=st.integers(2, 14),
    bounds=st.tuples(st.floats(0, 0.7), st.floats(0.71, 1)),
    kappa=st.floats(1, 60),
    floor=st.floats(0.05, 0.9),
    normalise=st.sampled_from(["none", "renorm", "rest_bucket"]),
    quantiles=st.sampled_from(["all", "beside_target"]),
)
def test_it_agrees_with_a_plain_loop_in_double(seed, size, top_k, bounds, kappa, floor, normalise, quantiles):
    config = DacKlLoss(
        top_k=top_k, kappa=kappa, min_kept_mass=floor, normalise=normalise, quantiles=quantiles,
        subnet_objective="fixed", fixed_lower=bounds[0], fixed_upper=bounds[1],
    )  # fmt: skip
    random = torch.Generator().manual_seed(seed)
    student, teacher = (2 * torch.randn(2, size, generator=random, dtype=torch.float64) for _ in range(2))
    expected = sum(
        naive_dac_kl(p.tolist(), q.tolist(), lower=bounds[0], upper=bounds[1], config=config)
        for p, q in zip(teacher.softmax(-1), student.softmax(-1), strict=True)
    )
    assert DacKl(config)(make_inputs(student, teacher)).total.item() == pytest.approx(expected, rel=1e-7, abs=1e-9)


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sharpness=st.floats(0.1, 12),
    normalise=st.sampled_from(["renorm", "rest_bucket"]),
    objective=st.sampled_from(["density", "minimise", "fixed"]),
    divergence=st.sampled_from(["forward", "reverse", "skew", "skew_reverse"]),
)
def test_normalised_forms_are_never_negative_nor_is_the_bucket_form_above_the_full_divergence(
    seed, sharpness, normalise, objective, divergence
):
    random = torch.Generator().manual_seed(seed)
    student, teacher = (sharpness * torch.randn(4, 20, generator=random) for _ in range(2))
    inputs = make_inputs(student, teacher)
    config = DacKlLoss(normalise=normalise, subnet_objective=objective, divergence=divergence, top_k=8, hidden_size=4)
    total = DacKl(config)(inputs).total.item()
    first, second = inputs.teacher_log_probs_MV, inputs.student_log_probs_MV
    if "reverse" in divergence:
        first, second = second, first
    if "skew" in divergence:
        second = (0.1 * first.exp() + 0.9 * second.exp()).log()
    full = (first.exp() * (first - second)).sum().item()
    assert total >= -1e-4
    if normalise == "rest_bucket":
        assert total <= full + 1e-4 + 1e-5 * full


# --- what f_sub is trained for ------------------------------------------------------------------------------


def random_distributions(
    m: int, v: int = 60, certainty: float = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Student and teacher logits: sharp and flat rows, the student a noisy teacher. With `certainty`, the first logit
    of the teacher is that far above the others (10: it holds more than 0.99 of the mass in nearly every row)."""
    random = torch.Generator().manual_seed(0)
    scale = torch.empty(m, 1, dtype=dtype).uniform_(1, 5, generator=random)
    teacher = scale * torch.randn(m, v, generator=random, dtype=dtype)
    if certainty:
        teacher[:, 0] = teacher.amax(-1) + certainty
    return teacher + torch.randn(m, v, generator=random, dtype=dtype), teacher


LITERAL = {"quantiles": "all", "density_gain": "absolute", "start_lower": 0.05, "start_upper": 0.95}


def trained(certainty: float = 0, **settings_) -> dict[str, float]:
    """Mean stats after f_sub alone was trained on fixed distributions."""
    torch.manual_seed(0)
    loss = DacKl(DacKlLoss(**{"top_k": 32, "hidden_size": 16} | settings_))
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-2)
    student, teacher = random_distributions(64, certainty=certainty)
    for _ in range(80):
        optimizer.zero_grad()
        output = loss(make_inputs(student, teacher))
        (output.total / 64).backward()
        optimizer.step()
    means = {name: value.item() / 64 for name, value in output.stats.items()}
    return means | {"alarm": loss.alarm(means) is not None}


@pytest.mark.parametrize("certainty", [0, 5, 10])
@pytest.mark.parametrize("divergence", ["forward", "skew_reverse"])
def test_density_holds_on_to_more_than_the_floor_however_sure_the_teacher_is(certainty, divergence):
    stats = trained(certainty, divergence=divergence)
    assert stats["kept_mass_beside_target"] > 0.5
    assert stats["floor_held"] < 0.25
    assert not stats["alarm"]
    assert stats["kept_classes"] < 33  # and not by keeping all there is


def test_by_quantiles_of_all_mass_density_keeps_more_than_the_floor_only_where_the_teacher_doubts():
    assert trained(0, **LITERAL)["floor_held"] < 0.25
    sure = trained(10, **LITERAL)
    assert sure["floor_held"] > 0.9
    assert sure["alarm"]


@pytest.mark.parametrize("normalise", ["rest_bucket", "none"])
def test_minimise_collapses_to_the_floor_and_the_stats_and_the_alarm_say_so(normalise):
    stats = trained(subnet_objective="minimise", normalise=normalise, **LITERAL)
    assert stats["kept_mass_beside_target"] == pytest.approx(0.1, abs=0.02)
    assert stats["floor_held"] > 0.9
    assert stats["alarm"]


def test_a_higher_price_keeps_fewer_classes():
    """The gradient of f_sub under `density` falls as the price of a class rises."""
    student, teacher = random_distributions(16)
    pull = []
    for price in (0.0, 1.0):
        torch.manual_seed(0)
        loss = DacKl(DacKlLoss(density_price=price, top_k=32))
        loss(make_inputs(student, teacher)).total.backward()
        pull.append(loss.subnet.layers[-1].bias.grad[1].item())  # of the upper bound; negative raises it
    assert pull[0] < 0 < pull[1]


@pytest.mark.parametrize("gain", ["absolute", "relative"])
def test_under_density_the_value_is_the_students_loss_and_each_side_gets_its_own_gradient(gain):
    student, teacher = random_distributions(8, dtype=torch.float64)
    student.requires_grad_()
    torch.manual_seed(0)
    settings_ = {"quantiles": "all", "density_gain": gain, "start_lower": 0.05, "start_upper": 0.95}
    loss = DacKl(DacKlLoss(top_k=16, hidden_size=8, kappa=20, density_price=0.01, **settings_)).double()
    inputs = make_inputs(student, teacher)
    total = loss(inputs).total
    (student_gradient,) = torch.autograd.grad(total, student, retain_graph=True)
    subnet_gradient = torch.autograd.grad(total, list(loss.parameters()))

    ids = teacher.topk(16).indices
    p, q = inputs.teacher_log_probs_MV, inputs.student_log_probs_MV
    p_classes, q_classes = (
        torch.cat([x.gather(-1, ids), x.scatter(-1, ids, -math.inf).logsumexp(-1, keepdim=True)], -1).exp()
        for x in (p, q)
    )
    lower, upper = loss.subnet(p.gather(-1, ids), q.gather(-1, ids))
    x = (p_classes.cumsum(-1) - p_classes / 2)[:, 1:]
    m = torch.sigmoid(20 * (x - lower[:, None])) * torch.sigmoid(20 * (upper[:, None] - x))
    share = (m * p_classes[:, 1:]).sum(-1) / p_classes[:, 1:].sum(-1)
    assert (share > 0.1).all()  # no position is held by the floor here

    def bucket_kl(p_c: Tensor, q_c: Tensor, kept: Tensor) -> Tensor:
        whole = torch.cat([torch.ones(len(kept), 1, dtype=kept.dtype), kept], -1)
        rest_p, rest_q = (p_c * (1 - whole)).sum(-1) + 1e-300, (q_c * (1 - whole)).sum(-1) + 1e-300
        return (whole * p_c * (p_c / q_c).log()).sum() + (rest_p * (rest_p / rest_q).log()).sum()

    students_loss = bucket_kl(p_classes, q_classes, m.detach())
    gained = bucket_kl(p_classes, q_classes.detach(), m)
    if gain == "relative":  # position by position: what the mask adds to the target alone, over all it could add
        q_classes_ = q_classes.detach()
        rows = [slice(i, i + 1) for i in range(8)]
        nothing, all_of_it = torch.zeros_like(m), torch.ones_like(m)
        only = torch.stack([bucket_kl(p_classes[i], q_classes_[i], nothing[i]) for i in rows])
        full = torch.stack([bucket_kl(p_classes[i], q_classes_[i], all_of_it[i]) for i in rows])
        held = torch.stack([bucket_kl(p_classes[i], q_classes_[i], m[i]) for i in rows])
        gained = ((held - only) / (full - only)).sum()
    subnets_loss = 0.01 * m.sum() - gained
    assert total.item() == pytest.approx(students_loss.item(), rel=1e-9)
    torch.testing.assert_close(student_gradient, torch.autograd.grad(students_loss, student, retain_graph=True)[0])
    torch.testing.assert_close(subnet_gradient, torch.autograd.grad(subnets_loss, list(loss.parameters())))


@pytest.mark.parametrize("floor", [0.1, 0.8])
@pytest.mark.parametrize("normalise", ["none", "renorm", "rest_bucket"])
def test_under_minimise_f_sub_gets_the_gradient_of_the_value(floor, normalise):
    """With a floor of 0.8 most positions are held, so this covers the gradient through the lift."""
    student, teacher = random_distributions(6, v=20, dtype=torch.float64)
    config = DacKlLoss(
        subnet_objective="minimise", normalise=normalise, min_kept_mass=floor, top_k=8, hidden_size=3, kappa=5
    )
    torch.manual_seed(0)
    loss = DacKl(config).double()

    def total(*parameters: Tensor) -> Tensor:
        names = [name for name, _ in loss.named_parameters()]
        replaced = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(loss, replaced, (make_inputs(student, teacher),)).total

    assert torch.autograd.gradcheck(total, tuple(loss.parameters()))


def test_fixed_bounds_have_no_network():
    assert list(DacKl(DacKlLoss(subnet_objective="fixed")).parameters()) == []


def test_the_networks_learning_rate_factor_is_the_configs():
    assert DacKl(DacKlLoss(subnet_lr_factor=3)).lr_factor == 3
