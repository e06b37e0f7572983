"""A speculation feature: it drafts the tokens that followed the last token earlier."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from core.api import Option, hookimpl

NAME = "drafting"


@hookimpl
def engine_options():
    return [Option("num_drafts", int, 0, "Draft tokens per step.")]


@hookimpl
def engine_scheduler_extensions(config, registry):
    return [DraftScheduler(config.options["num_drafts"])] if config.options["num_drafts"] else []


@hookimpl
def engine_runner_extensions(config, registry):
    return [DraftWriter()] if config.options["num_drafts"] else []


def follows(tokens: list[int], count: int) -> list[int]:
    """Return `count` tokens that followed the last token earlier, repeated as needed."""
    for at in range(len(tokens) - 2, -1, -1):
        if tokens[at] == tokens[-1]:
            piece = tokens[at + 1 :]
            return [piece[i % len(piece)] for i in range(count)]
    return [tokens[-1]] * count


class DraftScheduler:
    """Scheduler half: requests draft tokens for every row; sends the planned ones to the worker."""

    name = NAME

    def __init__(self, num_drafts: int) -> None:
        self._num_drafts = num_drafts
        self.num_planned = self.num_accepted = 0

    def num_draft_tokens(self, rows: Any) -> Any:
        return np.full(len(rows.rows), self._num_drafts)

    def planned(self, plan: Any) -> bytes | None:
        planned_rows = [
            (row, count)
            for row, count in zip(plan.decode_rows, plan.num_draft_tokens, strict=False)
            if count
        ]
        self.num_planned += sum(count for _, count in planned_rows)
        return msgspec.msgpack.encode(planned_rows) if planned_rows else None

    def result(self, payload: bytes) -> None:
        self.num_accepted += int.from_bytes(payload, "little")


class DraftWriter:
    """Worker half: writes draft tokens after each row's known tokens."""

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
            end = int(self._batch.next_positions[row])
            drafts = follows(tokens[: end + 1].tolist(), count)
            tokens[end + 1 : end + 1 + count] = torch.tensor(drafts)

    def sampled(self, sampled: Any, payload: bytes | None) -> None:
        self._right = int((sampled.accepted - 1).sum()) if payload else 0

    def after_sample(self, payload: bytes | None) -> bytes | None:
        right = self._right
        self._right = 0
        return right.to_bytes(4, "little") if right else None
