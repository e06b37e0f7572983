"""Worker extensions: their bound methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from core.contracts.attention import ForwardBatch
from core.contracts.sampling import SampleRows
from core.contracts.workers import LoadedParts, RunnerExtension, Sampled, WorkerParts
from core.errors import run_all
from core.model_spec.kv import LayerKV
from core.plugin.blame import Blame

Methods = tuple[tuple[str, Any], ...]
"""(extension name, bound method) of the extensions that have the method."""
Payloads = Mapping[str, bytes]


class Extensions:
    """Calls the methods of the worker extensions, with their payloads."""

    def __init__(self, extensions: Sequence[tuple[Blame, RunnerExtension]]) -> None:
        def having(method: str) -> Methods:
            halves = ((blame, e) for blame, e in extensions if hasattr(e, method))
            return tuple((e.name, blame(getattr(e, method))) for blame, e in halves)

        def maximum(attribute: str) -> int:
            return max((getattr(e, attribute, 0) for _, e in extensions), default=0)

        self._loaded = having("loaded")
        self._attach = having("attach")
        self._skips_step = having("skips_step")
        self._skipping: frozenset[str] = frozenset()
        """Extensions that skip the current step."""
        self._begin = having("begin")
        self._before_forward = having("before_forward")
        self._after_forward = having("after_forward")
        self._before_sample = having("before_sample")
        self._verify = having("verify")
        self._sampled = having("sampled")
        self._after_sample = having("after_sample")
        self._calls = dict(having("call"))
        self._close = having("close")
        self.max_draft_tokens = maximum("max_draft_tokens")
        """Draft tokens of one row in one step."""
        self.spare_blocks = maximum("spare_blocks")
        readers = (*self._begin, *self._sampled)
        self._position_readers = {name for name, _ in readers}
        self.changes_logits = bool(self._before_sample)
        self.returns_payloads = bool(self._after_sample)
        """Whether any extension may return a payload for its
        scheduler half.
        """

    def loaded(self, parts: LoadedParts) -> dict[str, list[LayerKV]]:
        """Return the caching layers that each extension adds."""
        return {name: list(call(parts)) for name, call in self._loaded}

    def attach(self, parts_of: Callable[[str], WorkerParts]) -> None:
        """Pass on the worker's parts."""
        for name, call in self._attach:
            call(parts_of(name))

    def begin(self, num_rows: int, payloads: Payloads) -> bool:
        """Begin a step with `num_rows` sampling rows, before its tokens are
        gathered.

        Returns whether an extension may read the rows' next positions in this step.
        """
        skipping = (n for n, skips in self._skips_step if skips(num_rows, payloads.get(n)))
        self._skipping = frozenset(skipping)
        for name, call in self._active(self._begin):
            call(payloads.get(name))
        return not self._position_readers <= self._skipping

    @property
    def reads_sampled(self) -> bool:
        """Whether an extension reads this step's tokens."""
        return bool(self._active(self._sampled))

    def _active(self, methods: Methods) -> Methods:
        if not self._skipping:
            return methods
        return tuple(method for method in methods if method[0] not in self._skipping)

    def before_forward(self, batch: ForwardBatch, payloads: Payloads) -> None:
        """Show the extensions the batch before the forward pass."""
        for name, call in self._active(self._before_forward):
            call(batch, payloads.get(name))

    def after_forward(self, batch: ForwardBatch, hidden: torch.Tensor, payloads: Payloads) -> None:
        """Show the extensions the hidden states of the forward pass."""
        for name, call in self._active(self._after_forward):
            call(batch, hidden, payloads.get(name))

    def before_sample(
        self, logits: torch.Tensor, rows: SampleRows, payloads: Payloads
    ) -> torch.Tensor:
        """Return the logits to sample from."""
        for name, call in self._active(self._before_sample):
            logits = call(logits, rows, payloads.get(name))
        return logits

    def verify(
        self,
        rows: SampleRows,
        drafts: torch.Tensor,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        payloads: Payloads,
    ) -> Sequence[torch.Tensor]:
        """Return the tokens to use, which draft tokens are accepted, and
        optionally an order.

        Without an extension that verifies, a draft token is accepted if it is the
        sampled one.
        """
        for name, call in self._verify:
            verified = call(rows, drafts, tokens, logits, payloads.get(name))
            return cast("Sequence[torch.Tensor]", verified)
        return tokens, drafts == tokens

    def sampled(self, sampled: Sampled, payloads: Payloads) -> None:
        """Show the extensions the sampled tokens."""
        for name, call in self._active(self._sampled):
            call(sampled, payloads.get(name))

    def after_sample(self, payloads: Payloads) -> dict[str, bytes]:
        """Return the payloads for the scheduler halves."""
        out = {}
        for name, call in self._active(self._after_sample):
            payload = call(payloads.get(name))
            if payload is not None:
                out[name] = payload
        return out

    def call(self, name: str, data: bytes) -> bytes | None:
        """Call `feature.verb` and return its answer; None if the feature has
        none.
        """
        feature, _, verb = name.partition(".")
        call = self._calls.get(feature)
        return None if call is None else call(verb, data)

    def close(self) -> None:
        """Close every extension, then raise the first error."""
        run_all(call for _, call in self._close)
