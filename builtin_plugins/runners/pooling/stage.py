"""From hidden states to pooled outputs: the second half of a step of a pooling model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F

from builtin_plugins.poolers.api import Pooler
from core.api import PoolingParams
from core.api.execution import NewRow, StageParts, StepPlan, StepRows
from core.api.outputs import PER_TOKEN
from core.model_spec.pooling import PoolingSpec

Plugged = tuple[Pooler, Callable[[Exception, str | None], str]]
"""A pooler, and the function that formats its errors."""


class PoolingStage:
    """Pools prompts; buffers the hidden states of earlier chunks if a pooler needs the whole
    prompt.

    Reads no device value back to the host.
    """

    def __init__(
        self, parts: StageParts, poolers: Sequence[Plugged], token_pooler: Plugged
    ) -> None:
        """`poolers`: for whole prompts, with concatenated vectors; `token_pooler`: for tokens."""
        self._model: Any = parts.model
        self._spec: PoolingSpec = parts.spec.pooling
        self._batch = parts.batch
        self._result = parts.result
        self._poolers = (tuple(poolers), (token_pooler,))
        self._buffers: dict[int, list[torch.Tensor]] = {}

    def added(self, new: NewRow) -> None:
        """Start buffering for a request that enters a row."""
        self._buffers[new.row] = []

    def removed(self, row: int) -> None:
        """Drop the buffer of a row."""
        self._buffers.pop(row, None)

    def token_types(self, inputs: StepRows) -> torch.Tensor | None:
        """Return the token type of each token (text of a pair); None without pairs."""
        starts = [
            request.pooling.pair_start
            for request in map(self._request, inputs.rows)
            if request.pooling
        ]
        if all(start < 0 for start in starts):
            return None
        first = torch.tensor([1 << 30 if start < 0 else start for start in starts])
        counts = torch.tensor(inputs.counts)
        pair_starts = first.repeat_interleave(counts).to(inputs.positions.device, non_blocking=True)
        return (inputs.positions >= pair_starts).long()

    def run(
        self, plan: StepPlan, inputs: StepRows, hidden: torch.Tensor, errors: dict[int, str]
    ) -> Any:
        """Pool the prompts that end in this step, and buffer hidden states of the others."""
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
            if inputs.counts[i] < request.prompt_len and any(
                pooler.needs_whole_prompt for pooler, _ in poolers
            ):
                self._buffers[request.row].append(own.clone())
                own = torch.cat(self._buffers[request.row])
            if len(own) and i in ending and request.pooling is not None:
                vectors = _pooled(poolers, own, request, request.pooling, errors)
                if request.row not in errors:
                    found[request.row] = (
                        vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=-1)
                    )
        self._finish(pending, found)
        return pending

    def write_tokens(self, inputs: StepRows, tokens: torch.Tensor) -> None:
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
                if self._spec.head_before_pooling and params.task not in PER_TOKEN:
                    values = values.mean(0, keepdim=True)
                pending.pooled[row] = finish_pooling(values, self._spec, params)
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
    """Return each pooler's vectors of a prompt; a failing pooler fails the request."""
    vectors = []
    for pooler, explain in poolers:
        try:
            vectors.append(pooler.pool(hidden, request.token_ids, params))
        except Exception as error:  # noqa: BLE001 - plugin code
            errors[request.row] = explain(error, request.request_id)
            break
    return vectors


def finish_pooling(numbers: torch.Tensor, spec: PoolingSpec, params: PoolingParams) -> torch.Tensor:
    """Return a request's output from the pooling head's numbers [m, size]; [size] for one
    vector.
    """
    columns = params.returned_token_ids or spec.returned_token_ids
    if spec.answer_tokens is not None:
        no, yes = spec.answer_tokens
        numbers = numbers[:, [yes]] - numbers[:, [no]]
    if spec.task == "embed":
        size = params.dimensions or spec.dimensions
        numbers = numbers if size is None else numbers[:, :size]
    elif columns:
        numbers = numbers[:, list(columns)]
    if spec.logit_mean or spec.logit_sigma != 1.0:
        numbers = (numbers - spec.logit_mean) / spec.logit_sigma
    activation = spec.output_activation or default_activation(spec, numbers.shape[-1])
    if params.use_activation is False:
        activation = "none"
    elif params.use_activation and activation == "none":
        activation = default_activation(spec, numbers.shape[-1])
    if activation == "normalize":
        numbers = F.normalize(numbers, dim=-1)
    elif activation != "none":
        numbers = numbers.softmax(-1) if activation == "softmax" else numbers.sigmoid()
    return numbers if params.task in PER_TOKEN else numbers[0]


def default_activation(spec: PoolingSpec, size: int) -> str:
    """Return the default output activation."""
    if spec.task == "embed":
        return "normalize"
    return "softmax" if size > 1 else "sigmoid"
