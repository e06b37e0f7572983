"""The mixture of tasks: which share of the examples each skill has, and the stream of them that a seed gives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from examples.demo_model.items import Draw, Item
from examples.demo_model.tasks import (
    arithmetic,
    engine_facts,
    everyday_tools,
    json_extract,
    lists,
    recall,
    repeat,
    rules,
    small_talk,
    tools,
)

SKILLS: Final = {
    "arithmetic": (arithmetic, (0.12, 0.10)),
    "tools": (tools, (0.40, 0.0)),
    "everyday tools": (everyday_tools, (0.0, 0.46)),
    "json": (json_extract, (0.10, 0.10)),
    "lists": (lists, (0.14, 0.12)),
    "rules": (rules, (0.09, 0.08)),
    "recall": (recall, (0.03, 0.03)),
    "engine": (engine_facts, (0.04, 0.04)),
    "repeat": (repeat, (0.05, 0.04)),
    "small talk": (small_talk, (0.03, 0.03)),
}
"""Each skill's task and its share of the conversations in the first run and in the second, whose everyday tools stand
beside those made from words."""


def training_items(seed: int, step: int, count: int, run: int = 1) -> list[Item]:
    """Return the conversations of one step of a run; nothing else decides, so training can stop and go on anywhere."""
    draw = Draw(random.Random(f"train {seed} {step}"), evaluation=False)
    names, shares = list(SKILLS), [of_runs[run - 1] for _, of_runs in SKILLS.values()]
    return [SKILLS[name][0].make(draw) for name in draw.rng.choices(names, shares, k=count)]


def evaluation_items(skill: str, seed: int, count: int) -> Iterator[Item]:
    """Yield held-out conversations of one skill."""
    draw = Draw(random.Random(f"evaluation {skill} {seed}"), evaluation=True)
    for _ in range(count):
        yield SKILLS[skill][0].make(draw)
