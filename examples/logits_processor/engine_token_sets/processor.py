"""Forbids or boosts sets of tokens, set with `extra_args={"token_sets": {...}}`.

{"forbid": [17, 18], "boost": {"tokens": [40, 41], "by": 5.0}}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from core.api import InvalidRequest

if TYPE_CHECKING:
    from core.api import SamplingParams
    from core.api.sampling import SamplerContext, SampleRows

FIELD = "extra_args.token_sets"
EXAMPLES = [
    (
        {"extra_args": {"token_sets": {"forbid": [1]}}},
        [0, 2],
        [0.0, 1.0, 2.0],
        [0.0, -math.inf, 2.0],
    ),
    (
        {"extra_args": {"token_sets": {"boost": {"tokens": [0], "by": 2.5}}}},
        [1],
        [0.0, 1.0, 2.0],
        [2.5, 1.0, 2.0],
    ),
]
"""Parameters, tokens so far, logits before and after; checked by the conformance suite."""
EXAMPLE_PARAMS = {
    "extra_args": {"token_sets": {"forbid": [3, 5], "boost": {"tokens": [7], "by": 2.5}}}
}
"""Parameters that the conformance suite uses."""


class TokenSets:
    """Stores, per row with token sets, the tokens and the values to add to their logits."""

    params: tuple[str, ...] = ()
    argmax_invariant = False
    follows_tokens = False

    def __init__(self, context: SamplerContext) -> None:
        self._device = context.device
        self._vocab_size = context.vocab_size
        self._rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @staticmethod
    def validate(sampling: SamplingParams, vocab_size: int) -> None:
        """Raise `InvalidRequest` for invalid token sets, before the request is admitted."""
        if given := (sampling.extra_args or {}).get("token_sets"):
            _read(given, vocab_size)

    def wants(self, sampling: SamplingParams) -> bool:
        """Return whether the request has token sets."""
        return bool((sampling.extra_args or {}).get("token_sets"))

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Copy the row's sets to the device."""
        changes = _read((sampling.extra_args or {})["token_sets"], self._vocab_size)
        tokens = torch.tensor(list(changes), dtype=torch.int64, device=self._device)
        amounts = torch.tensor(list(changes.values()), dtype=torch.float32, device=self._device)
        self._rows[row] = (tokens, amounts)

    def removed(self, row: int) -> None:
        """Remove the row."""
        self._rows.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Add each row's values to its tokens' logits; minus infinity forbids a token."""
        for i, row in enumerate(rows.rows):
            tokens, amounts = self._rows[row]
            logits[i].index_add_(0, tokens, amounts)
        return logits


def _read(given: Any, vocab_size: int) -> dict[int, float]:
    """Return the value to add per token; forbidden tokens take precedence."""
    if not isinstance(given, Mapping) or not set(given) <= {"forbid", "boost"}:
        raise InvalidRequest(
            FIELD, f"must hold `forbid` or `boost` and nothing else, not {given!r:.100}."
        )
    boost = given.get("boost") or {"tokens": [], "by": 0.0}
    if not isinstance(boost, Mapping) or set(boost) != {"tokens", "by"}:
        raise InvalidRequest(f"{FIELD}.boost", f"must hold `tokens` and `by`, not {boost!r:.100}.")
    by = boost["by"]
    if not isinstance(by, (int, float)) or not math.isfinite(by):
        raise InvalidRequest(f"{FIELD}.boost.by", f"must be a finite number, not {by!r}.")
    changes = dict.fromkeys(_tokens(boost["tokens"], "boost.tokens", vocab_size), float(by))
    changes |= dict.fromkeys(_tokens(given.get("forbid") or [], "forbid", vocab_size), -math.inf)
    return changes


def _tokens(listed: Any, name: str, vocab_size: int) -> Sequence[int]:
    if not isinstance(listed, (list, tuple)):
        raise InvalidRequest(
            f"{FIELD}.{name}", f"must be a list of token ids, not {listed!r:.100}."
        )
    for token in listed:
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"{FIELD}.{name}", f"holds {token!r}; token ids are 0 to {vocab_size - 1}."
            )
    return listed
