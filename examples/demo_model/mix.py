"""The mixture of tasks: which share of the examples each skill has, and the stream of them that a seed gives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from examples.demo_model.items import Draw, Item
from examples.demo_model.tasks import (
    arithmetic,
    engine_facts,
    json_extract,
    lists,
    recall,
    repeat,
    rules,
    small_talk,
    tools,
)

SKILLS: Final = {
    "arithmetic": (arithmetic, 0.10),
    "tools": (tools, 0.46),
    "json": (json_extract, 0.10),
    "lists": (lists, 0.12),
    "rules": (rules, 0.08),
    "recall": (recall, 0.03),
    "engine": (engine_facts, 0.04),
    "repeat": (repeat, 0.04),
    "small talk": (small_talk, 0.03),
}
"""Each skill's task and its share of the conversations."""


def training_items(seed: int, step: int, count: int) -> list[Item]:
    """Return the conversations of one step; seed and step decide alone, so training can stop and go on anywhere."""
    draw = Draw(random.Random(f"train {seed} {step}"), evaluation=False)
    names, shares = list(SKILLS), [share for _, share in SKILLS.values()]
    return [SKILLS[name][0].make(draw) for name in draw.rng.choices(names, shares, k=count)]


def evaluation_items(skill: str, seed: int, count: int) -> Iterator[Item]:
    """Yield held-out conversations of one skill."""
    draw = Draw(random.Random(f"evaluation {skill} {seed}"), evaluation=True)
    for _ in range(count):
        yield SKILLS[skill][0].make(draw)
