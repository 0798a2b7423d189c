"""The generator: the same tasks for the same seed, no content in two splits, and right answers."""

from __future__ import annotations

import itertools
import re

import pytest

from benchmarks.quality.families import FAMILIES, Task
from benchmarks.quality.tokenizer import END, make_tokenizer
from benchmarks.quality.world import SPLITS, draw_tasks, split_of
from worker.distill.data import PromptEncoder


def test_the_same_seed_gives_the_same_tasks_and_another_seed_others() -> None:
    assert draw_tasks("train", 200, seed=3) == draw_tasks("train", 200, seed=3)
    assert draw_tasks("train", 200, seed=3) != draw_tasks("train", 200, seed=4)


def test_every_family_has_its_share_and_no_prompt_comes_twice() -> None:
    tasks = draw_tasks("test", 400, seed=0)
    assert len(FAMILIES) >= 8
    assert {family: sum(task.family == family for task in tasks) for family in FAMILIES} == dict.fromkeys(FAMILIES, 40)
    assert len({task.prompt for task in tasks}) == 400


def test_no_content_is_in_two_splits_however_it_is_worded() -> None:
    contents = [
        {(task.family, *task.content) for seed in (0, 1) for task in draw_tasks(split, 600, seed=seed)}
        for split in SPLITS
    ]
    for one, other in itertools.combinations(contents, 2):
        assert not one & other


def test_a_split_does_not_depend_on_the_wording() -> None:
    task = draw_tasks("dev", 1, seed=0)[0]
    assert split_of(Task(task.family, task.content, "in other words", "")) == "dev"


def test_a_family_that_is_exhausted_says_so() -> None:
    with pytest.raises(ValueError, match=r"the family \w+ has no \d+ different prompts in start"):
        draw_tasks("start", 100_000, seed=0)


def test_worked_steps_are_right() -> None:
    """Every `a + b = c` in a response holds."""
    sums = [
        found
        for task in draw_tasks("train", 2000, seed=0)
        for found in re.findall(r"(\d+) ([-+x]) (\d+) = (\d+)", task.response)
    ]
    assert len(sums) > 1000
    results = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "x": lambda a, b: a * b}
    assert all(results[sign](int(a), int(b)) == int(c) for a, sign, b, c in sums)


def test_answers_are_what_the_prompt_asks_for() -> None:
    tasks = draw_tasks("train", 1000, seed=1)
    for task in (task for task in tasks if task.family == "sorting"):
        numbers = sorted(re.findall(r"\d", task.prompt), reverse="largest to smallest" in task.prompt)
        assert re.findall(r"\d", task.response) == numbers
    for task in (task for task in tasks if task.family == "counting"):
        _, word, row = map(str, task.content)
        times = {0: "not there", 1: "there 1 time"}.get(
            row.split().count(word), f"there {row.split().count(word)} times"
        )
        assert task.response == f"The word {word} is {times}."


def test_a_look_up_answers_with_a_row_of_the_prompts_table() -> None:
    for task in draw_tasks("train", 200, seed=1, families=("lookup", "description")):
        key, value = task.response.removesuffix(".").split()
        assert f"{key} {value}" in task.prompt
        assert re.search(rf"\b{key}\b(?! {value})", task.prompt), "the key is asked for, beside its row"


def test_every_task_survives_the_tokenizer() -> None:
    words = make_tokenizer(draw_tasks("train", 5000, seed=0))
    encoder = PromptEncoder(words, template="chat", eos_ids=frozenset({words.eos_token_id}))
    assert words.convert_ids_to_tokens(encoder.end_id) == END
    for split in SPLITS:
        for task in draw_tasks(split, 200, seed=5):
            ids = encoder.response(task.response, max_tokens=100)
            assert encoder.text(ids) == task.response
            assert words.unk_token_id not in (*ids, *encoder.prompt([{"role": "user", "content": task.prompt}]))
