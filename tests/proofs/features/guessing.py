"""Tokens are guessed: what followed the last token the last time is guessed to follow again."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from core.api import Option, hookimpl

NAME = "guessing"


@hookimpl
def engine_options():
    return [Option("num_guesses", int, 0, "Tokens guessed behind each known one.")]


@hookimpl
def engine_scheduler_extensions(config, registry):
    return [Asks(config.options["num_guesses"])] if config.options["num_guesses"] else []


@hookimpl
def engine_runner_extensions(config, registry):
    return [Writes()] if config.options["num_guesses"] else []


def follows(tokens: list[int], count: int) -> list[int]:
    """Return what followed the last earlier place of the last token, as many times as it takes."""
    for at in range(len(tokens) - 2, -1, -1):
        if tokens[at] == tokens[-1]:
            piece = tokens[at + 1 :]
            return [piece[i % len(piece)] for i in range(count)]
    return [tokens[-1]] * count


class Asks:
    """Scheduler half: every row that decodes guesses; the worker half is told whose were granted."""

    name = NAME

    def __init__(self, most: int) -> None:
        self._most = most
        self.num_granted = self.num_right = 0

    def guesses(self, rows: Any) -> Any:
        return np.full(len(rows.rows), self._most)

    def planned(self, plan: Any) -> bytes | None:
        granted = [
            (row, count) for row, count in zip(plan.steady, plan.guesses, strict=False) if count
        ]
        self.num_granted += sum(count for _, count in granted)
        return msgspec.msgpack.encode(granted) if granted else None

    def result(self, payload: bytes) -> None:
        self.num_right += int.from_bytes(payload, "little")


class Writes:
    """Worker half: writes guesses behind what is known of each row, which at depth 2 only it knows."""

    name = NAME

    def attach(self, parts: Any) -> None:
        self._batch = parts.batch
        self._right = 0

    def begin(self, payload: bytes | None) -> None:
        import torch

        for row, count in (
            () if payload is None else msgspec.msgpack.decode(payload, type=list[tuple[int, int]])
        ):
            tokens = self._batch.token_ids[row]
            end = int(self._batch.ends[row])
            guess = follows(tokens[: end + 1].tolist(), count)
            tokens[end + 1 : end + 1 + count] = torch.tensor(guess)

    def sampled(self, sampled: Any, payload: bytes | None) -> None:
        self._right = int((sampled.accepted - 1).sum()) if payload else 0

    def after_sample(self, payload: bytes | None) -> bytes | None:
        right = self._right
        self._right = 0
        return right.to_bytes(4, "little") if right else None
