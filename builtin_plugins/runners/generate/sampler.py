"""The sampler: hidden states to logits, processors, tokens and log-probabilities, on the device."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from builtin_plugins.runners.generate.processors import Processors
from core.api.config import LogprobsMode
from core.api.execution import NewRow, Sampled, StepPlan
from core.api.models import GeneratingModel
from core.api.sampling import SampleRows
from core.api.worker import NO_LOGPROBS, PendingResult
from core.models.ops.sampling import GatheredLogprobs, Truncation, gather_logprobs

if TYPE_CHECKING:
    from core.api.worker import Extensions, InputBatch, Ints, StepInputs

MAX_CACHED_METADATA: Final = 64
"""Sampling metadata of recent steps to reuse."""
PROMPT_CHUNK: Final = 128
"""Prompt positions per logits call, for prompt log-probabilities."""


class SamplingMetadata:
    """What steps have in common that sample at the same points of the same requests."""

    def __init__(
        self, inputs: StepInputs, batch: InputBatch, processors: Processors, vocab_size: int
    ) -> None:
        self.rows = inputs.point_rows
        self.points = inputs.points
        self.version = inputs.version
        for row in self.rows:
            assert batch.requests[row] is not None, f"row {row} computes without a request"
        columns = batch.columns
        rows = np.asarray(self.rows, dtype=np.int64)
        device = batch.token_ids.device
        self.row_index = inputs.array("point_rows").clone()
        self.processed = processors.rows()
        self.prompt_lens: list[int] = columns.prompt_lens[rows].tolist()
        seeds, self.prompt_index, temperatures = columns.select(self.row_index)
        logprobs = columns.logprobs[rows]
        with_logprobs = np.flatnonzero(logprobs != NO_LOGPROBS)
        self.logprob_points: list[int] = with_logprobs.tolist()
        """Indices of the points with log-probabilities."""
        self.num_logprobs: list[int] = logprobs[self.logprob_points].tolist()
        heat = columns.temperatures[rows]
        warm = np.flatnonzero(heat > 0)
        self.random: list[int] = warm.tolist()
        """Indices of the points sampled at random; the others are greedy."""
        if self.random:
            self.all_random = len(warm) == len(rows)
            self.has_temperatures = bool((heat[warm] != 1).any())
            self.random_index = torch.from_numpy(warm).to(device, non_blocking=True)
            self.temperatures = temperatures[self.random_index][:, None]
            self.random_seeds = seeds[self.random_index]
            own = rows[warm]
            self.truncation = Truncation(columns.top_k[own], columns.top_p[own], vocab_size, device)
        self.chains: torch.Tensor | None = None
        """[rows, max draft tokens]: points of each row's drafts, padded with a false one."""
        if inputs.num_draft_tokens is not None:
            chains = _draft_chains(rows, inputs.num_draft_tokens, processors)
            self.chains = torch.from_numpy(chains).to(device)

    def fits(self, inputs: StepInputs) -> bool:
        """Return whether the metadata is valid for a step."""
        same_rows = self.rows is inputs.point_rows or self.rows == inputs.point_rows
        return same_rows and self.version == inputs.version and self.points == inputs.points


def _draft_chains(rows: Ints, num_draft_tokens: Ints, processors: Processors) -> Ints:
    firsts = np.cumsum(num_draft_tokens + 1) - num_draft_tokens - 1
    without_drafts = list(processors.rows_without_drafts())
    single = np.isin(rows[firsts], without_drafts)
    steps = np.arange(int(num_draft_tokens.max(initial=0)))
    used = (steps < num_draft_tokens[:, None]) & ~single[:, None]
    return np.where(used, firsts[:, None] + steps, len(rows))


def _reorder(
    order: torch.Tensor,
    logprob_points: list[int],
    hidden: torch.Tensor,
    final: torch.Tensor,
    raw: torch.Tensor | None,
    pending: PendingResult,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Reorder the points within their rows; `raw` has the `logprob_points` only."""
    if pending.finite is not None:
        pending.finite = pending.finite[order]
    if pending.possible is not None:
        pending.possible = pending.possible[order]
    if raw is not None:
        points = order.new_tensor(logprob_points)
        raw = raw[torch.searchsorted(points, order[points])]
    return hidden[order], final[order], raw


class Sampler:
    """Samples a step's tokens; reads no device value back."""

    def __init__(
        self,
        model: GeneratingModel,
        batch: InputBatch,
        processors: Processors,
        extensions: Extensions,
        mode: LogprobsMode,
        ops: Any,
    ) -> None:
        self.processors = processors
        self.added = processors.added
        self.removed = processors.removed
        self._model = model
        parameters = inspect.signature(model.logits).parameters
        self._logits_take_positions = "tokens" in parameters
        self._batch = batch
        self._extensions = extensions
        self._mode = mode
        self._best = ops.best
        self._truncate = ops.truncate
        self._draw = ops.draw
        self._metadata: SamplingMetadata | None = None
        """Metadata of the last step."""
        self._recent: dict[tuple[Sequence[int] | None, ...], SamplingMetadata] = {}
        """Recent metadata: speculative steps alternate between a few shapes."""

    def run(
        self, plan: StepPlan, inputs: StepInputs, hidden: torch.Tensor, errors: dict[int, str]
    ) -> PendingResult:
        """Sample the plan's rows, write their tokens, and gather requested log-probabilities."""
        pending = PendingResult(step=plan.step, errors=errors)
        if self._batch.prompt_logprobs_rows:
            pending.prompt_logprobs = self._prompt_logprobs(inputs, hidden)
        if inputs.samples:
            lasts = None
            picked = hidden
            if not inputs.samples_every_token:
                lasts = inputs.array("lasts")
                picked = hidden.index_select(0, lasts)
            logits = self._logits(picked, lasts)
            self._sample(inputs, picked, logits, pending, plan.payloads)
        return pending

    def token_types(self, inputs: StepInputs) -> torch.Tensor | None:
        """Return None: prompts of generating models are single texts."""

    def write_tokens(self, inputs: StepInputs, tokens: torch.Tensor) -> None:
        """Write tokens that the last pipeline stage sampled."""
        self._batch.write_tokens(inputs, tokens, inputs.accepted)

    def _logits(self, hidden: torch.Tensor, tokens: torch.Tensor | slice | None) -> torch.Tensor:
        logits: Callable[..., torch.Tensor] = self._model.logits
        return logits(hidden, tokens) if self._logits_take_positions else logits(hidden)

    def _sample(
        self,
        inputs: StepInputs,
        hidden: torch.Tensor,
        logits: torch.Tensor,
        pending: PendingResult,
        payloads: Mapping[str, bytes],
    ) -> None:
        """Sample from `logits`, [points, vocab] float32."""
        metadata = self._metadata_of(inputs)
        extensions = self._extensions
        rows = self._sample_rows(inputs, metadata)
        pending.rows = metadata.rows
        pending.points = metadata.points
        changes_logits = metadata.random or extensions.changes_logits
        is_plain = not changes_logits and self.processors.are_idle
        if not is_plain:
            pending.finite = self._best(logits)[0].isfinite()
        raw = None
        if metadata.logprob_points:  # a copy: processors may change logits in place
            raw = logits[metadata.logprob_points]
        logits = extensions.before_sample(logits, rows, payloads)
        pending.errors |= rows.errors
        shaping = self.processors.shaping
        logits, failed = self.processors.run(shaping, logits, rows, self._request_id)
        pending.errors |= failed
        needs_final = raw is not None and self._mode.startswith("processed")
        needs_final |= inputs.num_draft_tokens is not None
        tokens, values, final = self._choose(logits, rows, metadata, pending, needs_final)
        if is_plain:
            pending.finite = values.abs() < float("inf")
        else:
            pending.possible = values > float("-inf")
        if metadata.chains is not None:
            drafts = self._batch.flat_token_ids.index_select(0, inputs.array("destinations"))
            tokens, right, *order = extensions.verify(rows, drafts, tokens, final, payloads)
            if order:
                points = metadata.logprob_points
                hidden, final, raw = _reorder(order[0], points, hidden, final, raw, pending)
            right = torch.cat((right, right.new_zeros(1)))
            pending.accepted = right[metadata.chains].cumprod(dim=1).sum(dim=1) + 1
        self._batch.write_tokens(inputs, tokens, pending.accepted)
        pending.tokens = tokens
        if extensions.reads_sampled:
            self._show_sampled(inputs, rows, hidden, tokens, pending.accepted, payloads)
        if raw is not None:
            points = metadata.logprob_points
            scores = self._scores(raw, final[points])
            gathered = gather_logprobs(scores, tokens[points], metadata.num_logprobs)
            pending.logprobs = (points, gathered)

    def _sample_rows(self, inputs: StepInputs, metadata: SamplingMetadata) -> SampleRows:
        return SampleRows(
            metadata.rows,
            metadata.prompt_lens,
            inputs.lengths,
            metadata.row_index,
            inputs.array("point_lengths"),
            metadata.prompt_index,
            self._batch.token_ids,
            inputs.points,
            metadata.processed,
        )

    def _show_sampled(
        self,
        inputs: StepInputs,
        rows: SampleRows,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        accepted: torch.Tensor | None,
        payloads: Mapping[str, bytes],
    ) -> None:
        if accepted is None:
            accepted = torch.ones_like(tokens)
        positions = inputs.next_positions
        assert positions is not None, "next positions are not tracked in this step"
        sampled = Sampled(rows, tokens, accepted, positions, hidden)
        self._extensions.sampled(sampled, payloads)

    def _metadata_of(self, inputs: StepInputs) -> SamplingMetadata:
        last = self._metadata
        if last is not None and last.fits(inputs):
            return last
        key = tuple(inputs.point_rows), inputs.points and tuple(inputs.points)
        metadata = self._recent.get(key)
        if metadata is None or not metadata.fits(inputs):
            if len(self._recent) >= MAX_CACHED_METADATA:
                self._recent.clear()
            vocab_size = self._model.vocab_size
            metadata = SamplingMetadata(inputs, self._batch, self.processors, vocab_size)
            self._recent[key] = metadata
        self._metadata = metadata
        return metadata

    def _choose(
        self,
        logits: torch.Tensor,
        rows: SampleRows,
        metadata: SamplingMetadata,
        pending: PendingResult,
        needs_final: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the chosen tokens [n], their final logits [n], and all final logits.

        The latter are complete with `needs_final` only.
        """
        if not metadata.random:
            values, tokens = self._best(logits)
            return tokens, values, logits
        is_whole = metadata.all_random
        index = metadata.random_index
        scaled = logits if is_whole else logits.index_select(0, index)
        if metadata.has_temperatures:
            scaled = scaled.div_(metadata.temperatures)
        positions = rows.length_index if is_whole else rows.length_index[index]
        trimming = self.processors.trimming
        if any(active.rows for active in trimming):
            part = rows if is_whole else rows.select(metadata.random)
            scaled, failed = self.processors.run(trimming, scaled, part, self._request_id)
            pending.errors |= failed
        if metadata.truncation.is_active:
            scaled = self._truncate(scaled, metadata.truncation)
        drawn = self._draw(scaled, metadata.random_seeds, positions)
        drawn_values = scaled.gather(1, drawn[:, None])[:, 0]
        if is_whole:
            return drawn, drawn_values, scaled
        values, tokens = self._best(logits)
        tokens[index] = drawn
        values[index] = drawn_values
        if needs_final:
            logits[index] = scaled
        return tokens, values, logits

    def _scores(self, raw: torch.Tensor, final: torch.Tensor) -> torch.Tensor:
        """Return the scores that `logprobs_mode` selects."""
        scores = raw if self._mode.startswith("raw") else final
        return scores.log_softmax(dim=-1) if self._mode.endswith("logprobs") else scores

    def _prompt_logprobs(
        self, inputs: StepInputs, hidden: torch.Tensor
    ) -> list[tuple[int, GatheredLogprobs]]:
        """Return (row, scores of the prompt tokens after this step's positions)."""
        out = []
        for i, row in enumerate(inputs.rows):
            if row not in self._batch.prompt_logprobs_rows:
                continue
            request = self._request(row)
            num_logprobs = request.sampling.prompt_logprobs or 0
            start = inputs.starts[i]
            first = inputs.query_starts[i]
            count = min(inputs.counts[i], request.prompt_len - 1 - start)
            for offset in range(0, count, PROMPT_CHUNK):
                size = min(PROMPT_CHUNK, count - offset)
                own = slice(first + offset, first + offset + size)
                logits = self._logits(hidden[own], own)
                position = start + 1 + offset
                targets = self._batch.token_ids[row, position : position + size]
                scores = self._scores(logits, logits)
                out.append((row, gather_logprobs(scores, targets, [num_logprobs] * size)))
        return out

    def _request_id(self, row: int) -> str:
        return self._request(row).request_id

    def _request(self, row: int) -> NewRow:
        request = self._batch.requests[row]
        assert request is not None, f"row {row} computes without a request"
        return request
