"""A plugin with a worker extension that records its calls and writes draft tokens."""

from __future__ import annotations

from typing import Any

import torch

from core.api import hookimpl
from core.model_spec.kv import FullAttention, LayerKV

SEEN: list[tuple[str, Any]] = []
ATTACHED: dict[str, Any] = {}
DRAFTS: list[tuple[int, int, list[int]]] = []
"""(row, position, draft tokens) to write in the next step."""


class Recorder:
    """Records each call."""

    name = "recorder"

    def loaded(self, parts: Any) -> list[LayerKV]:
        SEEN.append(("loaded", type(parts.model).__name__))
        return [LayerKV("recorder.0", FullAttention(1, 8, "float32"))]

    def attach(self, parts: Any) -> None:
        ATTACHED["parts"] = parts

    def begin(self, payload: bytes | None) -> None:
        SEEN.append(("begin", payload))
        for row, position, tokens in DRAFTS:
            ATTACHED["parts"].batch.token_ids[row, position : position + len(tokens)] = (
                torch.tensor(tokens)
            )
        DRAFTS.clear()

    def before_forward(self, batch: Any, payload: bytes | None) -> None:
        SEEN.append(
            ("before_forward", (len(batch.attention), list(batch.starts), batch.positions.tolist()))
        )

    def sampled(self, sampled: Any, payload: bytes | None) -> None:
        facts = sampled.rows.rows, sampled.rows.points, sampled.rows.lengths
        SEEN.append(
            (
                "sampled",
                (
                    *facts,
                    sampled.accepted.tolist(),
                    sampled.next_positions.tolist(),
                    len(sampled.hidden),
                ),
            )
        )

    def after_sample(self, payload: bytes | None) -> bytes | None:
        return b"after" if payload else None

    def call(self, verb: str, data: bytes) -> bytes | None:
        return verb.encode() + data


@hookimpl
def engine_runner_extensions(config: Any) -> list[Any]:
    return [Recorder()]
