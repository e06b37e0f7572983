"""The mixture of tasks: which share of the examples each skill has, and the stream of them that a
seed gives.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import chain
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
    "arithmetic": (arithmetic, 0.09),
    "tools": (tools, 0.38),
    "json": (json_extract, 0.11),
    "lists": (lists, 0.17),
    "rules": (rules, 0.12),
    "recall": (recall, 0.03),
    "engine": (engine_facts, 0.03),
    "repeat": (repeat, 0.05),
    "small talk": (small_talk, 0.02),
}
"""Each skill's task and its share of the conversations."""
_TO_THE_SAME_TOOLS: Final = 3
"""Conversations that begin with the same tools; training computes these once."""


def training_groups(seed: int, step: int, count: int) -> list[list[Item]]:
    """Return the conversations of one step, those together that begin alike; nothing but the seed
    and the step
    decides, so training can stop and go on anywhere."""
    draw = Draw(random.Random(f"train {seed} {step}"), evaluation=False)
    skills = Counter(
        draw.rng.choices(list(SKILLS), [share for _, share in SKILLS.values()], k=count)
    )
    calling = skills.pop("tools", 0)
    groups = [
        tools.together(draw, min(_TO_THE_SAME_TOOLS, calling - done))
        for done in range(0, calling, _TO_THE_SAME_TOOLS)
    ]
    return groups + [[SKILLS[skill][0].make(draw)] for skill in skills.elements()]


def training_items(seed: int, step: int, count: int) -> list[Item]:
    """Return the conversations of one step, one by one."""
    return list(chain.from_iterable(training_groups(seed, step, count)))


def evaluation_items(skill: str, seed: int, count: int) -> Iterator[Item]:
    """Yield held-out conversations of one skill."""
    draw = Draw(random.Random(f"evaluation {skill} {seed}"), evaluation=True)
    for _ in range(count):
        yield SKILLS[skill][0].make(draw)
