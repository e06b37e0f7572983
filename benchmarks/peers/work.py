"""The work that every engine gets: prompts as token ids, made from seeds, and the figures that its
times give.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

TOKENS: Final = range(300, 31_000)
"""Ids that prompts are made of: no special ones in a vocabulary of 32,000."""

FIRST_MS: Final = "first token, ms"
"""The only figure of which less is better."""


@dataclass(frozen=True, slots=True)
class Task:
    """Requests of one kind, all there from the start; each generates exactly `output` tokens."""

    key: str
    about: str
    requests: int
    prompt: int
    """Tokens of each request's own."""
    output: int
    shared: int = 0
    """Tokens that all prompts begin with."""
    first_alone: bool = False
    """The first token is also asked for alone, so that decoding is the difference."""


TASKS: Final[Mapping[str, Task]] = MappingProxyType(
    {
        task.key: task
        for task in (
            Task("a", "32 requests, 128 in, 64 out", 32, 128, 64),
            Task("b", "8 requests, 1024 in, 32 out", 8, 1024, 32),
            Task("c", "32 requests, 512 shared + 32 in, 32 out", 32, 32, 32, shared=512),
            Task("d", "1 request, 128 in, 128 out", 1, 128, 128, first_alone=True),
            Task("e", "16 requests, 128 in, 64 out", 16, 128, 64, first_alone=True),
            Task("p", "1 request, 1024 in, 1 out", 1, 1024, 1),
        )
    }
)
WARM_UP: Final = Task("warm", "4 requests, 64 in, 8 out", 4, 64, 8)


def make_prompts(task: Task, seed: int) -> list[list[int]]:
    """Return the prompts of a task.

    Another seed shares nothing with them, so no prefix cache carries over.
    """
    source = random.Random(f"{task.key} {seed}")
    shared = source.choices(TOKENS, k=task.shared)
    return [shared + source.choices(TOKENS, k=task.prompt) for _ in range(task.requests)]


def figures(task: Task, whole_s: float, first_s: float | None = None) -> dict[str, float]:
    """Return what the times of a task amount to, by the name of the figure."""
    if first_s is not None:
        decoded = task.requests * (task.output - 1)
        rate = decoded / max(whole_s - first_s, 1e-9)
        return (
            {FIRST_MS: 1e3 * first_s, "decode, tokens/s": rate}
            if task.requests == 1
            else {"decode, tokens/s": rate}
        )
    if task.output == 1:
        return {"prompt tokens/s": task.requests * (task.shared + task.prompt) / whole_s}
    return {"tokens/s": task.requests * task.output / whole_s}
