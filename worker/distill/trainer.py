"""The training loop: step, report, evaluate, keep; then the student that is left.

Knows the order of things, and what to do when someone wants it to stop. Does not know any loss by name, nor where
events and students go.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from accelerate.utils import set_seed

from app.core.errors import NonFiniteLoss
from app.core.events import Emit, Evaluated, PhaseProgress, SampleDrawn, StepDone, StudentExported, Warned
from app.core.folder_cache import FolderCache
from app.core.job_config import DistillConfig
from worker.distill.assembly import Assembly, assemble
from worker.distill.checkup import Examiner
from worker.distill.export import export_model
from worker.distill.footprint import memory_metrics
from worker.distill.keeper import Keeper, Teller
from worker.distill.selection import Selection
from worker.distill.step import Stepper, StepTaken
from worker.distill.stopping import stop
from worker.distill.training_state import State, set_tensors
from worker.distill.types import ShouldStop, Stop

SPEED_MEMORY = 0.8  # share of the old estimate in the running seconds per step


@dataclass(frozen=True)
class DistilledStudent:
    """What a finished run leaves: a Hugging Face folder with the weights after `step`, metrics `before/...` training
    and `after/...` that step, and the folder of the teacher if the run tuned it."""

    folder: Path
    parameters: int
    weights_sha256: str
    metrics: dict[str, float]
    step: int
    teacher_folder: Path | None = None


@dataclass(frozen=True)
class Trained:
    """The step whose weights the student has now, and the run's metrics for them."""

    step: int
    metrics: dict[str, float]


def distill(
    config: DistillConfig,
    *,
    out: Path,
    emit: Emit,
    should_stop: ShouldStop,
    checkpoints: Path | None = None,
    states: FolderCache | None = None,
) -> DistilledStudent:
    """Trains the student that `config` describes and writes it to `out / "student"`.

    `checkpoints` is the folder that this run keeps its checkpoints in; the run goes on from the newest whole one, if
    there is any. `states` is where states of its teacher are kept, for this run and others; without one none are.
    `should_stop` is asked at every step boundary; a pause keeps a checkpoint there. Raises Cancelled, Paused,
    InvalidRequest subclasses for data, models and checkpoints that do not fit, NonFiniteLoss, NothingToLearn and
    DiskFull. `config.data` must be a file.
    """
    set_seed(config.training.seed)
    tell = Teller(emit)
    keeper = Keeper(checkpoints, config=config, tell=tell, teacher_folder=out / "teacher")
    run = assemble(config, emit=tell, should_stop=should_stop, keeper=keeper, states=states)
    trained = Trainer(run, keeper=keeper, emit=tell, should_stop=should_stop).train()
    return _exported(run, trained, out=out, emit=tell, keeper=keeper)


def _exported(run: Assembly, trained: Trained, *, out: Path, emit: Emit, keeper: Keeper) -> DistilledStudent:
    """Writes the student, and the teacher if it was tuned: comparing needs the one that the student learned from."""
    config = run.config
    emit(PhaseProgress(phase="exporting"))
    model, evaluation = run.student.model, config.evaluation
    fingerprint = export_model(
        model,
        run.tokenizer,
        out / "student",
        card={
            "config": config.model_dump(mode="json"),
            "metrics": trained.metrics,
            "parameters": model.num_parameters(),
            "step": trained.step,
            "chosen_by": evaluation.metric if evaluation.select == "best" else "last step",
        },
    )
    student = DistilledStudent(
        folder=out / "student",
        parameters=model.num_parameters(),
        weights_sha256=fingerprint,
        metrics=trained.metrics,
        step=trained.step,
        teacher_folder=keeper.place_teacher(out / "teacher") if config.warmup.teacher_sft_steps else None,
    )
    emit(
        StudentExported(
            folder=str(student.folder),
            parameters=student.parameters,
            weights_sha256=fingerprint,
            step=trained.step,
        )
    )
    return student


class Trainer:
    """One run from its first step, or from its newest checkpoint, to its last."""

    def __init__(self, run: Assembly, *, keeper: Keeper, emit: Emit, should_stop: ShouldStop) -> None:
        self._run = run
        self._keeper = keeper
        self._emit = emit
        self._should_stop = should_stop
        self._stepper = Stepper(run)
        self._examiner = Examiner.of(run, on_round=lambda: emit(PhaseProgress(phase="evaluating")))
        self._selection = Selection(run.config.evaluation)
        self._before: dict[str, float] = {}
        self._seconds_per_step = 0.0
        self._warned: set[str] = set()

    def train(self) -> Trained:
        """All steps that are left. The student then has the weights that `evaluation.select` says."""
        done = self._restored()
        if done is None:
            done = 0
            self._before = self._evaluate(0)
            self._selection.check(self._before)
        last = self._run.config.training.max_steps
        self._emit(PhaseProgress(phase="training", done=done, total=last))
        try:
            for step in range(done + 1, last + 1):
                if wish := self._should_stop():
                    self._stop(wish, step - 1)
                self._report(step, self._stepper.take(step))
                self._look_back(step)
        except NonFiniteLoss as error:
            raise NonFiniteLoss(error.message + self._keeper.kept(), error.field) from error
        return self._chosen()

    def _look_back(self, step: int) -> None:
        """What follows a step: an evaluation when it is due; a checkpoint when it is, or the student is the best."""
        training, is_last = self._run.config.training, step == self._run.config.training.max_steps
        is_best = False
        if is_last:
            self._warn_if_scrg_never_ran(step)
        if is_last or step % self._run.config.evaluation.every_steps == 0:
            is_best = self._selection.observe(step, self._evaluate(step))
        if is_best and not self._keeper.has_folder:
            self._keeper.remember(self._run.student.model)
        every = training.checkpoint_every
        if is_best or (every and (is_last or step % every == 0)):
            self._keep(step)

    def _chosen(self) -> Trained:
        """Gives the student the weights that were selected, if they are not those of the last step."""
        chosen, latest = self._selection.best, self._selection.latest
        if chosen.step != latest.step:
            weights = self._keeper.best_weights(chosen.step)
            if weights is None:
                message = (
                    f"the checkpoint of step {chosen.step}, the best, is gone or altered: the last step's is taken"
                )
                self._emit(Warned(code="best_lost", message=message))
                chosen = latest
            else:
                set_tensors(self._run.student.model, weights)
        before = {f"before/{name}": value for name, value in self._before.items()}
        return Trained(chosen.step, before | {f"after/{name}": value for name, value in chosen.metrics.items()})

    # --- stopping and going on ------------------------------------------------------------------------------

    def _stop(self, wish: Stop, step: int) -> NoReturn:
        where = f"after step {step} of {self._run.config.training.max_steps}"
        if wish == "pause":
            self._keep(step)
            where += self._keeper.kept()
        stop(wish, where)

    def _keep(self, step: int) -> None:
        state: State = {
            "stepper": self._stepper.state(),
            "selection": self._selection.state(),
            "before": self._before,
            "seconds_per_step": self._seconds_per_step,
            "warned": sorted(self._warned),
        }
        self._keeper.save("training", step, self._run.student.model, state, best_step=self._selection.best_step)

    def _restored(self) -> int | None:
        """The step behind which the run goes on; None when it begins."""
        found = self._keeper.restore("training", self._run.student.model)
        if found is None:
            return None
        step, state = found
        self._stepper.load(state["stepper"])
        self._selection.load(state["selection"])
        self._before = state["before"]
        self._seconds_per_step = state["seconds_per_step"]
        self._warned = set(state["warned"])
        return step

    # --- what others see ------------------------------------------------------------------------------------

    def _report(self, step: int, taken: StepTaken) -> None:
        memory = SPEED_MEMORY if self._seconds_per_step else 0.0
        self._seconds_per_step = memory * self._seconds_per_step + (1 - memory) * taken.seconds
        for warning in self._run.objective.warnings(taken.metrics, step=step):
            self._warn(warning)
        training, stepper = self._run.config.training, self._stepper
        if step % training.log_every and step != training.max_steps:
            return
        tokens_per_s = taken.tokens / taken.seconds
        metrics = {
            **taken.metrics,
            **{f"time/{name}_s": value for name, value in stepper.clock.take().items()},
            "train/learning_rate": stepper.optimization.learning_rate,
            "train/tokens_per_s": tokens_per_s,
            "sampling/phi": stepper.schedule.phi,
            "sampling/buffer": float(len(stepper.schedule.buffer)),
            **memory_metrics(self._run.device),
        }
        self._emit(
            StepDone(
                step=step,
                max_steps=training.max_steps,
                source=taken.window[-1].source,
                tokens=taken.tokens,
                tokens_per_s=tokens_per_s,
                eta_s=(training.max_steps - step) * self._seconds_per_step,
                metrics=metrics,
            )
        )
        for drawn in taken.window:
            if drawn.correction:
                self._emit(drawn.correction)

    def _evaluate(self, step: int) -> dict[str, float]:
        run = self._run
        self._emit(PhaseProgress(phase="evaluating"))
        found = self._examiner.examine(run.sampler.lm)
        self._stepper.schedule.observe_dev_loss(found.metrics["eval/loss"])
        self._emit(Evaluated(step=step, metrics=found.metrics))
        for answer in found.answers[: run.config.evaluation.samples]:
            self._emit(
                SampleDrawn(step=step, prompt=answer.row.prompt, text=answer.text, reference=answer.row.reference)
            )
        return found.metrics

    def _warn(self, warning: Warned) -> None:
        """Once per code: a state that lasts is not news at every step."""
        if warning.code not in self._warned:
            self._warned.add(warning.code)
            self._emit(warning)

    def _warn_if_scrg_never_ran(self, step: int) -> None:
        if self._run.config.scrg.rounds and not self._stepper.num_fresh:
            message = (
                "no batch was sampled from the student, so SCRG corrected nothing: phi stayed "
                f"{self._stepper.schedule.phi:g}; raise sampling.phi_start, or set scrg.rounds to 0 if that is meant"
            )
            self._warn(Warned(code="scrg_never_ran", message=message, step=step))
