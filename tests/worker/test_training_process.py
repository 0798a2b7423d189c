"""Training in a process of its own: real children that finish, stop, fail, hang, are killed, or lose their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.core.errors import Cancelled, Hung, ModelNotFound, Paused, WorkerLost
from app.core.events import Event, StepDone
from app.core.folder_cache import FolderCache
from app.core.job_config import DistillConfig
from tests.waiting import is_alive, until
from worker.distill.checkpoint import complete_checkpoints
from worker.training import KilledForMemory, Stop, TrainedStudent
from worker.training_process import TrainingProcess, kills_for_memory

SILENT = [sys.executable, "-c", "import time; time.sleep(600)"]


@dataclass
class Outside:
    """What the parent of a training sees and wants."""

    folder: Path
    events: list[Event] = field(default_factory=list)
    wish: Stop | None = None

    def steps(self) -> list[int]:
        return [event.step for event in self.events if isinstance(event, StepDone)]

    def train(self, config: DistillConfig, **settings: Any) -> TrainedStudent:
        process = TrainingProcess(**{"step_timeout_s": 120.0, **settings})
        return process(
            config,
            out=self.folder / "out",
            checkpoints=self.folder / "checkpoints",
            emit=self.events.append,
            should_stop=lambda: self.wish,
        )

    @contextmanager
    def once_it_trains(self, act: Callable[[], object]) -> Iterator[None]:
        def run() -> None:
            until(lambda: len(self.steps()) >= 2, timeout_s=120)
            act()

        thread = threading.Thread(target=run)
        thread.start()
        yield
        thread.join()


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path)


@pytest.fixture
def config(tiny_teacher: Path, tiny_rows: Path) -> Callable[..., DistillConfig]:
    def make(max_steps: int, *, teacher: str = str(tiny_teacher)) -> DistillConfig:
        return DistillConfig.model_validate(
            {
                "teacher": {"model": teacher},
                "student": {"kind": "from_teacher", "layers": 1},
                "data": {"kind": "file", "path": str(tiny_rows), "dev_rows": 4},
                "sampling": {"max_new_tokens": 8},
                "training": {"max_steps": max_steps, "batch_size": 2},
                "evaluation": {"rouge_rows": 2, "every_steps": 100_000},
            }
        )

    return make


def training_children() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with_arguments = child.cmdline() if is_alive(child.pid) else []
        if "worker.training_child" in with_arguments:
            found.append(child)
    return found


def test_a_child_trains_and_says_so(outside: Outside, config: Callable[..., DistillConfig]) -> None:
    student = outside.train(config(3))
    assert outside.steps() == [1, 2, 3]
    assert (student.folder / "model.safetensors").exists()
    assert (student.step, student.teacher_folder) == (3, None)
    assert training_children() == []


def test_a_child_keeps_its_teachers_states_where_it_is_told(
    outside: Outside, config: Callable[..., DistillConfig], tmp_path: Path
) -> None:
    states = FolderCache(tmp_path / "states", limit_bytes=2**20)
    wished = config(3)
    data = wished.data.model_copy(update={"teacher_states": "on"})
    for _ in range(2):
        outside.train(wished.model_copy(update={"data": data}), states=states)
    reading = [event for event in outside.events if event.kind == "phase" and event.phase == "teacher_states"]
    assert [event.done for event in reading] == list(range(2, 21, 2))  # the second child found them
    assert len(states.entries()) == 1


def test_what_a_child_raises_is_raised_here(outside: Outside, config: Callable[..., DistillConfig]) -> None:
    with pytest.raises(ModelNotFound, match="/no/such/teacher"):
        outside.train(config(3, teacher="/no/such/teacher"))


@pytest.mark.parametrize(("wish", "raised"), [("pause", Paused), ("cancel", Cancelled)])
def test_a_child_stops_at_a_step_boundary(
    outside: Outside, config: Callable[..., DistillConfig], wish: Stop, raised: type[Exception]
) -> None:
    with outside.once_it_trains(lambda: setattr(outside, "wish", wish)), pytest.raises(raised):
        outside.train(config(100_000))
    assert training_children() == []
    assert bool(complete_checkpoints(outside.folder / "checkpoints")) == (wish == "pause")


def test_a_killed_child_is_a_lost_worker(outside: Outside, config: Callable[..., DistillConfig]) -> None:
    def kill() -> None:
        (child,) = training_children()
        child.kill()

    with outside.once_it_trains(kill), pytest.raises(WorkerLost, match="SIGKILL"):
        outside.train(config(100_000))


def test_a_child_that_was_killed_for_memory_is_told_from_one_that_was_killed(
    outside: Outside, config: Callable[..., DistillConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's count is the test's own: nothing else here may really use up the machine's memory."""
    counts = iter([3, 4])
    monkeypatch.setattr("worker.training_process.kills_for_memory", lambda: next(counts))
    with pytest.raises(KilledForMemory, match="memory was used up"):
        outside.train(config(1), command=[sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])


def test_the_kernels_count_is_read_where_it_is(tmp_path: Path) -> None:
    group, machine = tmp_path / "memory.events", tmp_path / "vmstat"
    assert kills_for_memory((group, machine)) == 0
    machine.write_text("nr_free_pages 12\noom_kill 3\n")
    assert kills_for_memory((group, machine)) == 3
    group.write_text("low 0\nhigh 0\noom 2\noom_kill 1\n")
    assert kills_for_memory((group, machine)) == 1


def test_a_child_that_says_nothing_hangs_and_is_killed(outside: Outside, config: Callable[..., DistillConfig]) -> None:
    before = psutil.Process().children()  # of other tests: multiprocessing keeps a tracker
    with pytest.raises(Hung, match="STILLHOUSE_STEP_TIMEOUT_S"):
        outside.train(config(1), command=SILENT, step_timeout_s=0.5)
    assert set(psutil.Process().children()) <= set(before)


def test_a_child_that_does_not_hear_of_its_cancelling_is_killed(
    outside: Outside, config: Callable[..., DistillConfig]
) -> None:
    before = psutil.Process().children()
    outside.wish = "cancel"
    with pytest.raises(Cancelled, match="middle of a step"):
        outside.train(config(1), command=SILENT, grace_s=0.3)
    assert set(psutil.Process().children()) <= set(before)


def test_a_child_that_ends_without_a_word_says_its_status(
    outside: Outside, config: Callable[..., DistillConfig]
) -> None:
    with pytest.raises(WorkerLost, match="status 3"):
        outside.train(config(1), command=[sys.executable, "-c", "import sys; sys.exit(3)"])


PARENT = """
import sys
from pathlib import Path
from app.core.job_config import DistillConfig
from worker.training_process import TrainingProcess

config = DistillConfig.model_validate_json(sys.stdin.read())
folder = Path(sys.argv[1])
TrainingProcess(step_timeout_s=600)(
    config,
    out=folder / "out",
    checkpoints=folder / "checkpoints",
    emit=lambda event: print(event.kind, flush=True),
    should_stop=lambda: None,
)
"""


@pytest.mark.parametrize("child_is_stopped", [False, True])
def test_a_child_does_not_outlive_its_parent(
    config: Callable[..., DistillConfig], tmp_path: Path, child_is_stopped: bool
) -> None:
    """Killed, a parent can tell nobody; a child that is stopped cannot even see that its connection has ended."""
    if child_is_stopped and sys.platform != "linux":
        pytest.skip("only Linux ends a stopped child with its parent")
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(config(100_000).model_dump_json())
        parent.stdin.close()
        assert any(line.strip() == "step" for line in parent.stdout)
        (child,) = psutil.Process(parent.pid).children()
        if child_is_stopped:
            child.send_signal(signal.SIGSTOP)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        until(lambda: not is_alive(child.pid))
