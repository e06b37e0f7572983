"""From hidden states to what requests asked for: the second half of a step of a pooling model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from builtin_plugins.runners.pooling.finish import finish
from core.api import (
    PER_TOKEN,
    NewRow,
    Pooler,
    PoolingParams,
    PoolingSpec,
    StageParts,
    StepPlan,
    StepRows,
)

Plugged = tuple[Pooler, Callable[[Exception, str | None], str]]
"""A pooler, and what says of an error in a request that it is to blame."""


class PoolingStage:
    """Keeps what earlier chunks of a prompt gave, where its pooler needs all of it.

    Reads no device value back.
    """

    def __init__(
        self, parts: StageParts, poolers: Sequence[Plugged], token_pooler: Plugged
    ) -> None:
        """`poolers`: those for the prompt as a whole, whose vectors become one; `token_pooler`:
        that for each token.
        """
        self._model: Any = parts.model
        self._spec: PoolingSpec = parts.spec.pooling
        self._batch = parts.batch
        self._result = parts.result
        self._poolers = (tuple(poolers), (token_pooler,))
        self._held: dict[int, list[torch.Tensor]] = {}

    def added(self, new: NewRow) -> None:
        """A request takes a row, for the first time or again."""
        self._held[new.row] = []

    def removed(self, row: int) -> None:
        """A request has left its row."""
        self._held.pop(row, None)

    def token_types(self, inputs: StepRows) -> torch.Tensor | None:
        """Return which text of its pair each token of the step belongs to; None where there are no
        pairs.
        """
        starts = [
            request.pooling.pair_start
            for request in map(self._request, inputs.rows)
            if request.pooling
        ]
        if all(start < 0 for start in starts):
            return None
        first = torch.tensor([1 << 30 if start < 0 else start for start in starts])
        counts = torch.tensor(inputs.counts)
        behind = first.repeat_interleave(counts).to(inputs.positions.device, non_blocking=True)
        return (inputs.positions >= behind).long()

    def run(
        self, plan: StepPlan, inputs: StepRows, hidden: torch.Tensor, errors: dict[int, str]
    ) -> Any:
        """Pool the prompts that end in this step, and keep what is needed of the others."""
        pending = self._result(
            step=plan.step, errors=errors, rows=[inputs.rows[i] for i in inputs.samples]
        )
        found: dict[int, torch.Tensor] = {}
        ending = set(inputs.samples)
        for i, end in enumerate(accumulate(inputs.counts)):
            request = self._request(inputs.rows[i])
            poolers = self._poolers[
                request.pooling is not None and request.pooling.task in PER_TOKEN
            ]
            own = hidden[end - inputs.counts[i] : end]
            if inputs.counts[i] < request.prompt_len and any(pooler.whole for pooler, _ in poolers):
                self._held[request.row].append(own.clone())
                own = torch.cat(self._held[request.row])
            if len(own) and i in ending and request.pooling is not None:
                vectors = _pooled(poolers, own, request, request.pooling, errors)
                if request.row not in errors:
                    found[request.row] = (
                        vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=-1)
                    )
        self._finish(pending, found)
        return pending

    def take(self, inputs: StepRows, tokens: torch.Tensor) -> None:
        """No token was made on another stage either."""

    def _finish(self, pending: Any, found: Mapping[int, torch.Tensor]) -> None:
        device = self._batch.token_ids.device
        sizes = [len(vectors) for vectors in found.values()]
        pending.tokens = torch.zeros(len(pending.rows), dtype=torch.int64, device=device)
        pending.finite = pending.possible = torch.ones(
            len(pending.rows), dtype=torch.bool, device=device
        )
        if found:
            numbers = torch.split(self._model.pooled(torch.cat(list(found.values()))), sizes)
            for row, values in zip(found, numbers, strict=True):
                params = self._request(row).pooling
                assert params is not None
                if self._spec.late and params.task not in PER_TOKEN:
                    values = values.mean(0, keepdim=True)
                pending.pooled[row] = finish(values, self._spec, params)
            good = {row: values.isfinite().all() for row, values in pending.pooled.items()}
            whole = torch.ones((), dtype=torch.bool, device=device)
            pending.finite = torch.stack([good.get(row, whole) for row in pending.rows])

    def _request(self, row: int) -> NewRow:
        request = self._batch.requests[row]
        assert request is not None, f"row {row} computes without a request"
        return request


def _pooled(
    poolers: Sequence[Plugged],
    hidden: torch.Tensor,
    request: NewRow,
    params: PoolingParams,
    errors: dict[int, str],
) -> list[torch.Tensor]:
    """Return what each pooler makes of a prompt; the first that fails fails the request, named."""
    vectors = []
    for pooler, explain in poolers:
        try:
            vectors.append(pooler.pool(hidden, request.token_ids, params))
        except Exception as error:  # noqa: BLE001 - plugin code
            errors[request.row] = explain(error, request.request_id)
            break
    return vectors
