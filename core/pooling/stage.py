"""From hidden states to what requests asked for: the second half of a step of a pooling model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from core.contracts import Pooler, PoolingModel
from core.nn.pooling import finish
from core.pooling_spec import PoolingSpec
from core.pooling_types import PER_TOKEN, Pooled
from core.step import NewRow, StepPlan

if TYPE_CHECKING:
    from core.worker.batch import Batch, StepInputs
    from core.worker.processors import Explain
    from core.worker.result import PendingResult


class PoolingStage:
    """Keeps what earlier chunks of a prompt gave, where its pooler needs all of it. Reads no device value back."""

    def __init__(
        self,
        model: PoolingModel,
        batch: Batch,
        spec: PoolingSpec,
        poolers: Sequence[tuple[Pooler, Explain]],
        result: type[PendingResult],
    ) -> None:
        """`poolers`: the one for the prompt as a whole, and the one for each token; `result` makes results."""
        self._model, self._batch, self._spec, self._poolers = model, batch, spec, poolers
        self._result = result
        self._held: dict[int, list[torch.Tensor]] = {}

    def added(self, new: NewRow) -> None:
        """A request takes a row, for the first time or again."""
        self._held[new.row] = []

    def removed(self, row: int) -> None:
        """A request has left its row."""
        self._held.pop(row, None)

    def token_types(self, inputs: StepInputs) -> torch.Tensor | None:
        """Return which text of its pair each token of the step belongs to; None where there are no pairs."""
        starts = [request.pooling.pair_start for request in map(self._request, inputs.rows) if request.pooling]
        if all(start < 0 for start in starts):
            return None
        first = torch.tensor([1 << 30 if start < 0 else start for start in starts])
        counts = torch.tensor(inputs.counts)
        behind = first.repeat_interleave(counts).to(inputs.positions.device, non_blocking=True)
        return (inputs.positions >= behind).long()

    def run(self, plan: StepPlan, inputs: StepInputs, hidden: torch.Tensor, errors: dict[int, str]) -> PendingResult:
        """Pool the prompts that end in this step, and keep what is needed of the others."""
        pending = self._result(step=plan.step, errors=errors, rows=[inputs.rows[i] for i in inputs.samples])
        found: dict[int, torch.Tensor] = {}
        ending = set(inputs.samples)
        for i, end in enumerate(accumulate(inputs.counts)):
            request = self._request(inputs.rows[i])
            pooler, explain = self._poolers[request.pooling is not None and request.pooling.task in PER_TOKEN]
            own = hidden[end - inputs.counts[i] : end]
            if pooler.whole and inputs.counts[i] < request.prompt_len:
                self._held[request.row].append(own.clone())
                own = torch.cat(self._held[request.row])
            if len(own) and i in ending and request.pooling is not None:
                try:
                    found[request.row] = pooler.pool(own, request.token_ids, request.pooling)
                except Exception as error:  # noqa: BLE001 - plugin code; fails this request, named
                    errors[request.row] = explain(error, request.request_id)
        self._finish(pending, found)
        return pending

    def take(self, inputs: StepInputs, tokens: torch.Tensor) -> None:
        """No token was made on another stage either."""

    def _finish(self, pending: PendingResult, found: Mapping[int, torch.Tensor]) -> None:
        device, sizes = self._batch.token_ids.device, [len(vectors) for vectors in found.values()]
        pending.tokens = torch.zeros(len(pending.rows), dtype=torch.int64, device=device)
        pending.finite = pending.possible = torch.ones(len(pending.rows), dtype=torch.bool, device=device)
        if found:
            numbers = torch.split(self._model.pooled(torch.cat(list(found.values()))), sizes)
            for row, values in zip(found, numbers, strict=True):
                params = self._request(row).pooling
                assert params is not None
                pending.pooled[row] = finish(values, self._spec, params)
            good = {row: values.isfinite().all() for row, values in pending.pooled.items()}
            whole = torch.ones((), dtype=torch.bool, device=device)
            pending.finite = torch.stack([good.get(row, whole) for row in pending.rows])

    def _request(self, row: int) -> NewRow:
        request = self._batch.requests[row]
        assert request is not None, f"row {row} computes without a request"
        return request


def to_host(pooled: Mapping[int, torch.Tensor], errors: Collection[int]) -> dict[int, Pooled]:
    """Copy what rows without errors get to the host, as plain data."""
    return {
        row: Pooled(values.numpy(force=True).tobytes(), tuple(values.shape))
        for row, values in pooled.items()
        if row not in errors
    }
