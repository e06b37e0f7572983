"""The worker halves of features, flattened at start-up: an absent method costs an empty loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from core.contracts import ForwardBatch, RunnerExtension, SampleRows
from core.contracts.scheduling import LoadedParts, Sampled, WorkerParts
from core.errors import make_all
from core.model_spec.kv import LayerKV
from core.plugin.blame import Blame

Methods = tuple[tuple[str, Any], ...]
"""(name, method) of those that have the method."""


class Extensions:
    """Calls the methods that runner extensions have, with their payloads."""

    def __init__(self, extensions: Sequence[tuple[Blame, RunnerExtension]]) -> None:
        def having(method: str) -> Methods:
            return tuple(
                (e.name, blame(getattr(e, method))) for blame, e in extensions if hasattr(e, method)
            )

        self._loaded = having("loaded")
        self._attach = having("attach")
        self._rests = having("rests")
        self._resting: frozenset[str] = frozenset()
        self._begin = having("begin")
        self._before_forward = having("before_forward")
        self._after_forward = having("after_forward")
        self._before_sample = having("before_sample")
        self._verify = having("verify")
        self._sampled = having("sampled")
        self._after_sample = having("after_sample")
        self._calls = dict(having("call"))
        self._closing = having("close")
        self.most_guesses = max((getattr(e, "most_guesses", 0) for _, e in extensions), default=0)
        """Of one row in one step."""
        self.spare_blocks = max((getattr(e, "spare_blocks", 0) for _, e in extensions), default=0)
        self._following = {name for name, _ in (*self._begin, *self._sampled)}
        self.changes_logits = bool(self._before_sample)
        self.answers = bool(self._after_sample)
        """Some may answer steps."""

    def loaded(self, parts: LoadedParts) -> dict[str, list[LayerKV]]:
        """Return the caching layers that each adds."""
        return {name: list(call(parts)) for name, call in self._loaded}

    def attach(self, parts_of: Callable[[str], WorkerParts]) -> None:
        """Show what the worker holds."""
        for name, call in self._attach:
            call(parts_of(name))

    def begin(self, num_rows: int, payloads: Mapping[str, bytes]) -> bool:
        """Tell of a step in which so many rows sample, before its tokens are read, whoever does not
        rest in it.

        Return whether one may want to know where rows go on.
        """
        self._resting = frozenset(
            name for name, rests in self._rests if rests(num_rows, payloads.get(name))
        )
        for name, call in self._awake(self._begin):
            call(payloads.get(name))
        return not self._following <= self._resting

    @property
    def wants_sampled(self) -> bool:
        """Say whether one wants to see what is sampled in this step."""
        return bool(self._awake(self._sampled))

    def _awake(self, methods: Methods) -> Methods:
        return (
            tuple(each for each in methods if each[0] not in self._resting)
            if self._resting
            else methods
        )

    def before_forward(self, batch: ForwardBatch, payloads: Mapping[str, bytes]) -> None:
        """Show the batch before the model runs."""
        for name, call in self._awake(self._before_forward):
            call(batch, payloads.get(name))

    def after_forward(
        self, batch: ForwardBatch, hidden: torch.Tensor, payloads: Mapping[str, bytes]
    ) -> None:
        """Show what the model has made of the batch."""
        for name, call in self._awake(self._after_forward):
            call(batch, hidden, payloads.get(name))

    def before_sample(
        self, logits: torch.Tensor, rows: SampleRows, payloads: Mapping[str, bytes]
    ) -> torch.Tensor:
        """Return the logits to sample from."""
        for name, call in self._awake(self._before_sample):
            logits = call(logits, rows, payloads.get(name))
        return logits

    def verify(
        self,
        rows: SampleRows,
        guessed: torch.Tensor,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        payloads: Mapping[str, bytes],
    ) -> Sequence[torch.Tensor]:
        """Return the tokens to take and which guesses are right, and perhaps in which order points
        are taken.
        """
        for name, call in self._verify:
            return cast(
                "Sequence[torch.Tensor]", call(rows, guessed, tokens, logits, payloads.get(name))
            )
        return tokens, guessed == tokens

    def sampled(self, sampled: Sampled, payloads: Mapping[str, bytes]) -> None:
        """Show what was sampled."""
        for name, call in self._awake(self._sampled):
            call(sampled, payloads.get(name))

    def after_sample(self, payloads: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the payloads for the scheduler halves."""
        out = {}
        for name, call in self._awake(self._after_sample):
            payload = call(payloads.get(name))
            if payload is not None:
                out[name] = payload
        return out

    def call(self, name: str, data: bytes) -> bytes | None:
        """Let the feature that a call names answer it, if it does."""
        feature, _, verb = name.partition(".")
        call = self._calls.get(feature)
        return None if call is None else call(verb, data)

    def close(self) -> None:
        """Let each end what works for it, then raise the first error of those that fail."""
        make_all(call for _, call in self._closing)
