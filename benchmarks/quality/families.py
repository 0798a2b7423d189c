"""Families of tasks of the closed world: each draws one task and words it in one of several ways.

Knows words, numbers and random numbers. Does not know splits, tokens or models. A task's `content` is what is asked,
without the wording: two tasks with the same content differ in their templates only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

NAMES = [
    "Ada",
    "Ben",
    "Carl",
    "Dora",
    "Emma",
    "Finn",
    "Gina",
    "Hugo",
    "Ida",
    "Jon",
    "Kim",
    "Leo",
    "Mia",
    "Nora",
    "Otto",
    "Paul",
    "Rosa",
    "Sam",
    "Tess",
    "Uma",
]
THINGS = [
    "apples",
    "books",
    "coins",
    "pens",
    "shells",
    "cards",
    "eggs",
    "stamps",
    "cups",
    "keys",
    "plums",
    "nuts",
    "balls",
    "boats",
    "lamps",
    "bells",
]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
GOODS = ["tea", "milk", "soup"]
PAINTED = ["door", "roof", "wall"]
COUNTED = ["cat", "dog", "hen"]
ANIMALS = ["dog", "cat", "bird", "horse", "goat", "duck", "hen", "fox", "wolf", "bear"]
ADJECTIVES = ["old", "young", "small", "big", "brown", "white", "quick", "lazy", "happy", "quiet"]
PLACES = ["garden", "house", "river", "barn", "forest", "field", "bridge", "market", "lake", "tower"]
PREPOSITIONS = ["near", "behind", "past", "around"]
VERBS = {"walks": "walked", "runs": "ran", "sings": "sang", "sleeps": "slept", "waits": "waited", "swims": "swam"}
STEMS = {"walks": "walk", "runs": "run", "sings": "sing", "sleeps": "sleep", "waits": "wait", "swims": "swim"}
PLURALS = {animal: f"{animal}s" for animal in ANIMALS} | {"fox": "foxes", "wolf": "wolves"}
LETTERS = "abcdef"
COLOURS = ["red", "blue", "green", "black", "white", "yellow", "pink", "grey"]
# larger unit, smaller unit, how many of the smaller one are in the larger one
UNITS = [("hours", "minutes", 60), ("metres", "centimetres", 100), ("feet", "inches", 12), ("weeks", "days", 7)]


@dataclass(frozen=True)
class Task:
    """One instruction with its only right response."""

    family: str
    content: tuple[str | int, ...]
    prompt: str
    response: str


Content = tuple[str | int, ...]
# content, wordings of the prompt, response
Drawn = tuple[Content, list[str], str]


def _word_problem(chance: random.Random) -> Drawn:
    name, things = chance.choice(NAMES), chance.choice(THINGS)
    a, b, c = chance.randint(4, 9), chance.randint(2, 9), chance.randint(1, 5)
    total, rest = a + b, a + b - c
    wordings = [
        f"{name} has {a} {things}. {name} buys {b} more and gives {c} away. How many {things} does {name} have now?",
        f"There are {a} {things} in a box. {name} puts {b} in and takes {c} out. How many {things} are left?",
        f"{name} finds {a} {things}, then {b} more, and loses {c}. How many {things} are left?",
    ]
    return (name, things, a, b, c), wordings, f"{a} + {b} = {total}, {total} - {c} = {rest}. There are {rest} {things}."


def _date(chance: random.Random) -> Drawn:
    month, days = chance.choice(MONTHS), chance.randint(1, 9)
    after = chance.random() < 0.5
    day = chance.randint(1, 9) if after else chance.randint(10, 18)
    other = day + days if after else day - days
    way, sign = ("after", "+") if after else ("before", "-")
    wordings = [
        f"What is the date {days} days {way} {month} {day}?",
        f"Name the day that comes {days} days {way} {month} {day}.",
        f"Take {month} {day}. Which date is {days} days {way} that?",
    ]
    return (month, day, days, way), wordings, f"{day} {sign} {days} = {other}, so it is {month} {other}."


def _units(chance: random.Random) -> Drawn:
    name, (large, small, factor) = chance.choice(NAMES), chance.choice(UNITS)
    a, b = chance.randint(2, 9), chance.randint(1, min(factor - 1, 9))
    product, total = a * factor, a * factor + b
    wordings = [
        f"{name} measures {a} {large} and {b} {small}. How many {small} is that?",
        f"Write {a} {large} and {b} {small} in {small} for {name}.",
        f"{name} changes {a} {large} {b} {small} into {small}. What is it?",
    ]
    return (name, large, a, b), wordings, f"{a} x {factor} = {product}, {product} + {b} = {total} {small}."


def _sorting(chance: random.Random) -> Drawn:
    up = chance.random() < 0.5
    numbers = chance.sample(range(1, 10), chance.randint(3, 4))
    row = ", ".join(map(str, numbers))
    way = "smallest to largest" if up else "largest to smallest"
    wordings = [f"Sort from {way}: {row}.", f"Put {row} in order, {way}.", f"Order these numbers {way}: {row}."]
    return (way, *numbers), wordings, ", ".join(map(str, sorted(numbers, reverse=not up))) + "."


def _string_edit(chance: random.Random) -> Drawn:
    letters = chance.choices(LETTERS, k=chance.randint(3, 4))
    edits: Mapping[str, tuple[str, list[str]]] = {
        "backwards": ("Write {} backwards.", letters[::-1]),
        "first": ("Drop the first letter of {}.", letters[1:]),
        "last": ("Write the last letter of {} twice.", [*letters, letters[-1]]),
        "swap": ("Swap the first two letters of {}.", [letters[1], letters[0], *letters[2:]]),
    }
    edit = chance.choice(list(edits))
    template, result = edits[edit]
    text = template.format(" ".join(letters))
    wordings = [text, f"Edit the letters. {text}", f"{text} Give only the letters."]
    return (edit, *letters), wordings, " ".join(result)


def _lookup(chance: random.Random) -> Drawn:
    """The answer is the table's row as it stands there: with words between key and value (`tea costs 4`), a small
    teacher does not come to find the value by its key in minutes of training."""
    name, costs = chance.choice(NAMES), chance.choices(range(1, 10), k=len(GOODS))
    table = ", ".join(f"{thing} {cost}" for thing, cost in zip(GOODS, costs, strict=True))
    i = chance.randrange(len(GOODS))
    wordings = [
        f"The prices of {name}: {table}. What does {GOODS[i]} cost?",
        f"{name} sells: {table}. Name the price of {GOODS[i]}.",
        f"What does {GOODS[i]} cost? {name} asks: {table}.",
    ]
    return (name, *costs, i), wordings, f"{GOODS[i]} {costs[i]}."


def _grammar(chance: random.Random) -> Drawn:
    adjective, animal, verb = chance.choice(ADJECTIVES), chance.choice(ANIMALS), chance.choice(list(VERBS))
    where = f"{chance.choice(PREPOSITIONS)} the {chance.choice(PLACES)}"
    sentence = f"The {adjective} {animal} {verb} {where}."
    changes = {
        "past": ("Put it in the past", f"The {adjective} {animal} {VERBS[verb]} {where}."),
        "plural": ("Make it plural", f"The {adjective} {PLURALS[animal]} {STEMS[verb]} {where}."),
        "negative": ("Make it negative", f"The {adjective} {animal} does not {STEMS[verb]} {where}."),
        "question": ("Turn it into a question", f"Does the {adjective} {animal} {STEMS[verb]} {where}?"),
    }
    change = chance.choice(list(changes))
    order, answer = changes[change]
    wordings = [f"{order}: {sentence}", f"{sentence} {order}.", f"Change the sentence. {order}: {sentence}"]
    return (change, sentence), wordings, answer


def _counting(chance: random.Random) -> Drawn:
    name, word = chance.choice(NAMES), chance.choice(COUNTED)
    words = chance.choices(COUNTED, k=chance.randint(3, 5))
    row, times = " ".join(words), words.count(word)
    wordings = [
        f"How often is {word} in the list of {name}: {row}?",
        f"Count {word} for {name}: {row}.",
        f"{name} writes {row}. How many times is {word} there?",
    ]
    found = {0: "not there", 1: "there 1 time"}.get(times, f"there {times} times")
    return (name, word, row), wordings, f"The word {word} is {found}."


def _difference(chance: random.Random) -> Drawn:
    name, things = chance.choice(NAMES), chance.choice(THINGS)
    a, b = chance.sample(range(1, 10), 2)
    more, less = max(a, b), min(a, b)
    wordings = [
        f"{name} has {a} {things} in one box and {b} in the other. What is the difference?",
        f"{name} counts {a} {things} and then {b}. How many more is the larger number?",
        f"Compare for {name}: {a} {things} and {b} {things}. What is the difference?",
    ]
    return (name, things, a, b), wordings, f"{more} - {less} = {more - less}, so it is {more - less} {things}."


def _description(chance: random.Random) -> Drawn:
    place, colours = chance.choice(PLACES), chance.choices(COLOURS, k=len(PAINTED))
    i = chance.randrange(len(PAINTED))
    text = ", ".join(f"{thing} {colour}" for thing, colour in zip(PAINTED, colours, strict=True))
    wordings = [
        f"Colours in the {place}: {text}. Which colour has the {PAINTED[i]}?",
        f"Look at the table of the {place}: {text}. What colour is the {PAINTED[i]}?",
        f"Which colour has the {PAINTED[i]} in the {place}? The table: {text}.",
    ]
    return (place, *colours, i), wordings, f"{PAINTED[i]} {colours[i]}."


FAMILIES: Mapping[str, Callable[[random.Random], Drawn]] = {
    "word_problem": _word_problem,
    "date": _date,
    "units": _units,
    "sorting": _sorting,
    "string_edit": _string_edit,
    "lookup": _lookup,
    "grammar": _grammar,
    "counting": _counting,
    "difference": _difference,
    "description": _description,
}


def draw_task(family: str, chance: random.Random) -> Task:
    """One task of `family`, worded by chance."""
    content, wordings, response = FAMILIES[family](chance)
    return Task(family, content, chance.choice(wordings), response)
