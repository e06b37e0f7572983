"""From hidden states to tokens: logits, processors, choice, log-probabilities; all on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import torch

from core.config.sections import LogprobsMode
from core.contracts import GeneratingModel, SampleRows
from core.step import NewRow, StepPlan
from core.types import SamplingParams
from core.worker.processors import Processors, select
from core.worker.result import Gathered, PendingResult, gather
from core.worker.sampler import apply_temperature, best_tokens, draw, random_rows, truncate

if TYPE_CHECKING:
    from core.worker.batch import Batch, StepInputs
    from core.worker.extensions import Extensions

PROMPT_POSITIONS: Final = 128
"""Positions of a prompt whose logits are held at once."""


class SamplingStage:
    """The second half of a step. Nothing in it reads a device value back."""

    def __init__(
        self,
        model: GeneratingModel,
        batch: Batch,
        processors: Processors,
        extensions: Extensions,
        mode: LogprobsMode,
    ) -> None:
        self.processors = processors
        self.added, self.removed = processors.added, processors.removed
        self._model = model
        self._batch = batch
        self._extensions = extensions
        self._mode = mode

    def run(self, plan: StepPlan, inputs: StepInputs, hidden: torch.Tensor, errors: dict[int, str]) -> PendingResult:
        """Sample the rows the plan names, write the tokens to the batch, and gather what was asked for."""
        pending = PendingResult(step=plan.step, errors=errors)
        ends = inputs.query_starts[1:]
        pending.prompt_logprobs = self._prompt_logprobs(inputs, hidden, ends)
        if inputs.samples:
            last = torch.tensor([ends[i] - 1 for i in inputs.samples])
            logits = self._model.logits(hidden[last.to(hidden.device, non_blocking=True)])  # [n, vocab] float32
            self._sample(inputs, logits, pending, plan.payloads)
        pending.payloads = self._extensions.after_sample(plan.payloads)
        return pending

    def token_types(self, inputs: StepInputs) -> torch.Tensor | None:
        """Prompts of a model that generates are no pairs."""

    def take(self, inputs: StepInputs, tokens: torch.Tensor) -> None:
        """Write tokens that were sampled elsewhere to the batch."""
        rows = self._rows(inputs)
        self._batch.token_ids[rows.row_index, rows.length_index] = tokens

    def _sample(
        self, inputs: StepInputs, logits: torch.Tensor, pending: PendingResult, payloads: Mapping[str, bytes]
    ) -> None:
        rows = self._rows(inputs)
        requests = [self._request(row) for row in rows.rows]
        names = [request.request_id for request in requests]
        sampling = [request.sampling for request in requests]
        pending.rows = rows.rows
        pending.finite = logits.amax(dim=-1).isfinite()
        asked = [i for i, params in enumerate(sampling) if params.logprobs is not None]
        raw = logits[asked] if asked else None  # a copy: processors may change logits in place
        logits = self._extensions.before_sample(logits, rows, payloads)
        logits, failed = self.processors.run(self.processors.shaping, logits, rows, names)
        pending.errors |= failed
        scored = self._mode.startswith("processed") and bool(asked)
        tokens, values, final = self._choose(logits, rows, sampling, names, pending, scored)
        self._batch.token_ids[rows.row_index, rows.length_index] = tokens
        pending.tokens = tokens
        pending.possible = values > float("-inf")
        if raw is not None:
            scores = self._scores(raw, final[asked])
            counts = [sampling[i].logprobs or 0 for i in asked]
            pending.logprobs = ([rows.rows[i] for i in asked], gather(scores, tokens[asked], counts))

    def _choose(
        self,
        logits: torch.Tensor,
        rows: SampleRows,
        sampling: list[SamplingParams],
        names: list[str],
        pending: PendingResult,
        scored: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the chosen tokens [n], their final logits [n], and all final logits where they are `scored`."""
        random = random_rows(sampling)
        if not random:
            values, tokens = best_tokens(logits)
            return tokens, values, logits
        part = select(rows, random)
        params = [sampling[i] for i in random]
        scaled = apply_temperature(logits if len(random) == len(sampling) else logits[random], params)
        scaled, failed = self.processors.run(self.processors.trimming, scaled, part, [names[i] for i in random])
        pending.errors |= failed
        scaled = truncate(scaled, params)
        drawn = draw(scaled, self._batch.seeds[part.row_index], part.length_index)
        chances = scaled.gather(1, drawn[:, None])[:, 0]
        if len(random) == len(sampling):
            return drawn, chances, scaled
        values, tokens = best_tokens(logits)
        tokens[random], values[random] = drawn, chances
        if scored:
            logits[random] = scaled
        return tokens, values, logits

    def _scores(self, raw: torch.Tensor, final: torch.Tensor) -> torch.Tensor:
        """Return what log-probabilities report, as `logprobs_mode` says."""
        scores = raw if self._mode.startswith("raw") else final
        return scores.log_softmax(dim=-1) if self._mode.endswith("logprobs") else scores

    def _prompt_logprobs(self, inputs: StepInputs, hidden: torch.Tensor, ends: list[int]) -> list[tuple[int, Gathered]]:
        """Return, per row that asked, the scores of the prompt tokens that follow this step's positions."""
        out = []
        asking = self._batch.prompt_logprobs_rows
        for i, row in enumerate(inputs.rows if asking else ()):
            if row not in asking:
                continue
            request = self._request(row)
            wanted = request.sampling.prompt_logprobs or 0
            first, start = ends[i] - inputs.counts[i], inputs.starts[i]
            count = min(inputs.counts[i], request.prompt_len - 1 - start)
            for at in range(0, count, PROMPT_POSITIONS):
                size = min(PROMPT_POSITIONS, count - at)
                logits = self._model.logits(hidden[first + at : first + at + size])
                following = self._batch.token_ids[row, start + 1 + at : start + 1 + at + size]
                out.append((row, gather(self._scores(logits, logits), following, [wanted] * size)))
        return out

    def _rows(self, inputs: StepInputs) -> SampleRows:
        rows = [inputs.rows[i] for i in inputs.samples]
        lengths = [inputs.starts[i] + inputs.counts[i] for i in inputs.samples]
        prompt_lens = [self._batch.prompt_lens[row] for row in rows]
        device = self._batch.token_ids.device
        index = torch.tensor([rows, lengths, prompt_lens]).to(device, non_blocking=True)
        return SampleRows(rows, prompt_lens, lengths, index[0], index[1], index[2], self._batch.token_ids)

    def _request(self, row: int) -> NewRow:
        request = self._batch.requests[row]
        assert request is not None, f"row {row} computes without a request"
        return request
