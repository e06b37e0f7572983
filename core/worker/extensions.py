"""The worker halves of features, flattened at start-up: an absent method costs an empty loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from core.contracts import ForwardBatch, RunnerExtension, SampleRows
from core.plugin.blame import Blame


class Extensions:
    """Calls the methods that runner extensions have, with their payloads."""

    def __init__(self, extensions: Sequence[tuple[Blame, RunnerExtension]]) -> None:
        def having(method: str) -> tuple[tuple[str, Any], ...]:
            return tuple((e.name, blame(getattr(e, method))) for blame, e in extensions if hasattr(e, method))

        self._before_forward = having("before_forward")
        self._before_sample = having("before_sample")
        self._after_sample = having("after_sample")

    def before_forward(self, batch: ForwardBatch, payloads: Mapping[str, bytes]) -> None:
        """Show the batch before the model runs."""
        for name, call in self._before_forward:
            call(batch, payloads.get(name))

    def before_sample(self, logits: torch.Tensor, rows: SampleRows, payloads: Mapping[str, bytes]) -> torch.Tensor:
        """Return the logits to sample from."""
        for name, call in self._before_sample:
            logits = call(logits, rows, payloads.get(name))
        return logits

    def after_sample(self, payloads: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the payloads for the scheduler halves."""
        out = {}
        for name, call in self._after_sample:
            payload = call(payloads.get(name))
            if payload is not None:
                out[name] = payload
        return out
