"""Which metrics share a chart, and the one sentence that says what each chart shows.

Knows metric names and words. Does not draw: plots.py does. A metric nobody thought of here still appears, in a chart
made from its prefix (`assign`), so a new loss or measure needs no line in this file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.core.schemas import Series

SPARE_SENTENCE = "Reported by the run; this page has no words of its own for them."


@dataclass(frozen=True)
class Chart:
    """`takes`: exact metric names, or a prefix that ends in `/`. `unit_range`: the values are shares from 0 to 1.
    `divide_by` turns what is stored into the unit that the words speak of."""

    key: str
    title: str
    sentence: str
    takes: Sequence[str] = ()
    unit_range: bool = False
    stacked: bool = False
    from_zero: bool = True
    divide_by: float = 1.0


ERROR_POSITIONS = Chart(
    "error_positions",
    "Where corrections fall",
    "How many of the corrected examples had their error at which token of the response; a pile at 0 is a bad start.",
)
CHARTS: Sequence[Chart] = (
    Chart(
        "loss",
        "Training losses",
        "Each term’s mean and their weighted total; SFT does not count on sampled batches, so the total jumps there.",
        ("loss/",),
    ),
    Chart(
        "eval_kl",
        "Held-out divergence",
        "KL per token between teacher and student, both ways, on rows never trained on: the distance still to go.",
        ("eval/kl_ts", "eval/kl_st"),
    ),
    Chart(
        "eval_rouge",
        "Held-out agreement",
        "ROUGE-L of the student’s answers, and how often its first choice is the teacher’s; higher is better.",
        ("eval/rouge_l", "eval/top1_agreement"),
    ),
    Chart(
        "eval_answers",
        "Held-out answers",
        "Share of different words and word pairs (low means repetitive), and of answers that ended by themselves.",
        ("eval/distinct_1", "eval/distinct_2", "eval/ended"),
        unit_range=True,
    ),
    Chart("eval_length", "Length of answers", "Mean tokens of a held-out answer.", ("eval/answer_tokens",)),
    Chart(
        "eval_loss",
        "Held-out losses",
        "The training objective and its terms on rows never trained on; rising while training falls means overfitting.",
        ("eval/loss", "eval/loss/"),
    ),
    Chart(
        "dac_bounds",
        "DAC-KL bounds",
        "Quantiles of the teacher’s probability mass between which classes count; lines that meet mean a collapse.",
        ("dac_kl/lower", "dac_kl/upper"),
        unit_range=True,
    ),
    Chart(
        "dac_mass",
        "DAC-KL kept mass",
        "Share of teacher probability inside the bounds, also without its first choice, and positions the floor holds.",
        ("dac_kl/kept_mass", "dac_kl/kept_mass_beside_target", "dac_kl/floor_held"),
        unit_range=True,
    ),
    Chart(
        "dac_classes", "DAC-KL kept classes", "Tokens per position that enter the divergence.", ("dac_kl/kept_classes",)
    ),
    Chart(
        "scrg",
        "SCRG corrections",
        "Share of sampled tokens the teacher would not have drawn, and where the worst one sits (0 start, 1 end).",
        ("scrg/mismatch_rate", "scrg/error_position"),
        unit_range=True,
    ),
    Chart(
        "scrg_kl",
        "SCRG error size",
        "KL(teacher‖student) at the corrected token: how far apart the two were where they disagreed most.",
        ("scrg/error_kl",),
    ),
    Chart(
        "lengths",
        "Sampled lengths",
        "Mean tokens of a fresh student answer, and how many of them a correction drops and has written again.",
        ("sampling/response_tokens", "scrg/dropped_tokens"),
    ),
    Chart(
        "phi",
        "Student share φ",
        "Share of batches taken from the student; it rises when the held-out loss rises.",
        ("sampling/phi",),
        unit_range=True,
    ),
    Chart("buffer", "Replay buffer", "Corrected student answers waiting to be trained on again.", ("sampling/buffer",)),
    Chart(
        "speed",
        "Throughput",
        "Response tokens trained on per second; sampling steps are slower.",
        ("train/tokens_per_s",),
    ),
    Chart(
        "time",
        "Time per step",
        "Seconds of each step, split by what they were spent on.",
        ("time/",),
        stacked=True,
    ),
    Chart(
        "memory",
        "Memory",
        "GiB that the training process holds on its host, and the most it has held on its device so far.",
        ("memory/host_bytes", "memory/device_bytes"),
        divide_by=2.0**30,
    ),
    Chart("lr", "Learning rate", "The optimizer’s step size: a warm-up, then the schedule.", ("train/learning_rate",)),
    Chart(
        "grad", "Gradient norm", "Size of the update before clipping; spikes are unsteady steps.", ("train/grad_norm",)
    ),
)

_NAMES: Mapping[str, str] = {
    "dac_kl": "DAC-KL",
    "sft": "SFT",
    "span": "Span",
    "forward_kl": "Forward KL",
    "reverse_kl": "Reverse KL",
    "jsd": "JSD",
    "skew_kl": "Skewed KL",
    "skew_reverse_kl": "Skewed reverse",
    "tvd": "TVD",
    "topk_kl": "Top-k KL",
    "topp_kl": "Top-p KL",
    "scrg": "SCRG",
    "eval": "Evaluation",
    "train": "Training",
    "kl_ts": "KL(T‖S)",
    "kl_st": "KL(S‖T)",
    "error_kl": "KL at the error",
    "response_tokens": "tokens sampled",
    "dropped_tokens": "tokens dropped",
    "rouge_l": "ROUGE-L",
    "top1_agreement": "same first choice",
    "distinct_1": "different words",
    "distinct_2": "different word pairs",
    "ended": "ended by themselves",
    "kept_mass_beside_target": "beside first choice",
    "floor_held": "held by floor",
    "phi": "φ",
    "tokens_per_s": "tokens/s",
    "host_bytes": "host",
    "device_bytes": "device",
    "memory": "Memory",
}


def label(metric: str) -> str:
    """`loss/dac_kl` -> DAC-KL; an unknown name is shown as it is, with blanks for underscores."""
    last = metric.rsplit("/", 1)[-1]
    return _NAMES.get(last, last.removesuffix("_s").replace("_", " "))


def assign(series: Sequence[Series]) -> list[tuple[Chart, list[Series]]]:
    """Every series in exactly one chart: CHARTS in order, then one per prefix that none of them claims. No chart is
    empty."""
    left = {one.name: one for one in sorted(series, key=_total_first)}
    filled = []
    for chart in CHARTS:
        names = [name for taken in chart.takes for name in left if _matches(taken, name)]
        if names:
            filled.append((chart, [left.pop(name) for name in names]))
    return filled + _spare_charts(left.values())


def _matches(taken: str, metric: str) -> bool:
    return metric == taken or (taken.endswith("/") and metric.startswith(taken))


def _total_first(one: Series) -> tuple[bool, str]:
    return (not one.name.endswith("/total"), one.name)


def _spare_charts(series: Iterable[Series]) -> list[tuple[Chart, list[Series]]]:
    groups: dict[str, list[Series]] = {}
    for one in series:
        groups.setdefault(one.name.split("/", 1)[0], []).append(one)
    return [
        (
            Chart(f"spare:{prefix}", f"Further values: {_NAMES.get(prefix, prefix)}", SPARE_SENTENCE, from_zero=False),
            group,
        )
        for prefix, group in groups.items()
    ]
