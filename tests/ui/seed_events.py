"""What a seeded run says at its steps: curves of plausible shapes, answers that become better, corrections."""

from __future__ import annotations

import math
import random

from app.core.events import Correction, Evaluated, Event, SampleDrawn, StepDone

STEPS = 100


def step_events(step: int, rng: random.Random) -> list[Event]:
    """What a run says at one step, with curves of plausible shapes."""
    done = step / STEPS
    noise = rng.gauss(0, 0.04)
    sft, dac, span = 2.4 - 0.7 * done + noise, 1.5 * math.exp(-2 * done) + 0.35 + noise, 0.012 - 0.004 * done
    fresh = rng.random() < done
    metrics = {
        "loss/total": sft + dac + span,
        "loss/sft": sft,
        "loss/dac_kl": dac,
        "loss/span": span,
        "dac_kl/lower": 0.03 + 0.01 * noise,
        "dac_kl/upper": 0.9 - 0.05 * done + 0.2 * noise,
        "dac_kl/kept_mass": 0.97 + 0.1 * noise,
        "dac_kl/kept_mass_beside_target": min(1.0, 0.8 + noise),
        "dac_kl/floor_held": max(0.0, 0.04 + noise / 4),
        "dac_kl/kept_classes": 2.6 - 0.8 * done + noise,
        "sampling/phi": 0.1 * (step // 30),
        "sampling/buffer": 8.0 * step * done,
        "train/learning_rate": 5e-5 * (step / 5 if step < 5 else 0.5 * (1 + math.cos(math.pi * done))),
        "train/grad_norm": 1.2 + 6 * noise**2 + 0.6 * math.exp(-4 * done),
        "train/tokens_per_s": (420 if fresh else 900) + 500 * noise,
        "memory/host_bytes": 2.1e9 + 4e6 * step,
        "time/teacher_s": 0.7 + noise / 2,
        "time/student_s": 1.1 + noise / 2,
        "time/loss_s": 0.35,
        "time/data_s": 0.02,
        "time/generate_s": 2.1 + noise if fresh else 0.0,
        "time/scrg_s": 0.8 + noise / 2 if fresh else 0.0,
    }
    if fresh:
        metrics |= {"scrg/mismatch_rate": 0.3 - 0.1 * done + noise, "scrg/error_position": 0.44 + 2 * noise}
    told: list[Event] = [
        StepDone(
            step=step,
            max_steps=STEPS,
            source="fresh" if fresh else "ground_truth",
            tokens=700,
            tokens_per_s=metrics["train/tokens_per_s"],
            eta_s=(STEPS - step) * 2.3,
            metrics=metrics,
        )
    ]
    if fresh and step % 6 == 0:
        told.append(
            Correction(
                step=step,
                prompt="Name three uses of baking soda.",
                before="Baking soda can be used to clean surfaces, to",
                student_token=" eat",
                teacher_token=" remove",
                dropped=" eat the smell of the kitchen and then the kitchen.",
                regenerated=" remove odours from a fridge, and to help dough rise.",
                error_position=10,
                kl=3.21 + noise,
            )
        )
    return told


def evaluation_events(step: int) -> list[Event]:
    done = step / STEPS
    quality = (
        "the the sky sky",
        "The sky is blue because light.",
        "The sky is blue because air scatters blue light more.",
    )
    text = quality[min(2, int(3 * done))]
    values = {"eval/kl_ts": 1.9 * math.exp(-1.6 * done) + 0.2, "eval/loss": 2.9 - 0.9 * done}
    values |= {"eval/rouge_l": 0.08 + 0.3 * done, "eval/top1_agreement": 0.31 + 0.3 * done}
    return [
        Evaluated(step=step, metrics=values),
        SampleDrawn(step=step, prompt="Why is the sky blue?", text=text, reference="Air scatters blue light most."),
        SampleDrawn(
            step=step, prompt="Write a haiku about rain.", text=f"Rain falls on the roof\n{text}", reference=None
        ),
    ]
