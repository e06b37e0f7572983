"""From hidden states to tokens: logits, processors, choice, log-probabilities; all on the device."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from builtin_plugins.runners.generate.processors import Processors
from core.config.sections import LogprobsMode
from core.contracts import GeneratingModel, SampleRows
from core.contracts.scheduling import Sampled
from core.models.ops.logprobs import Gathered, gather
from core.models.ops.sampling import Cut
from core.step import NewRow, StepPlan
from core.worker.result import PendingResult
from core.worker.rows import UNASKED

if TYPE_CHECKING:
    from core.worker.batch import Batch
    from core.worker.extensions import Extensions
    from core.worker.inputs import StepInputs
    from core.worker.staging import Ints

MOST_COMPANIES: Final = 64
"""Kinds of steps that are remembered."""
PROMPT_POSITIONS: Final = 128
"""Positions of a prompt whose logits are held at once."""


class _Company:
    """What is alike in steps that sample at the same points of the same requests."""

    def __init__(
        self, stage: SamplingStage, inputs: StepInputs, batch: Batch, vocab_size: int
    ) -> None:
        self.rows = inputs.point_rows
        self.points = inputs.points
        self.version = inputs.version
        for row in self.rows:
            assert batch.requests[row] is not None, f"row {row} computes without a request"
        columns = batch.columns
        rows = np.asarray(self.rows, dtype=np.int64)
        device = batch.token_ids.device
        self.row_index = inputs.at("point_rows").clone()
        self.processed = stage.processors.rows()
        self.prompt_lens: list[int] = columns.prompt_lens[rows].tolist()
        seeds, self.prompt_index, temperatures = columns.of(self.row_index)
        asked = columns.logprobs[rows]
        self.asked: list[int] = np.flatnonzero(asked != UNASKED).tolist()
        self.num_logprobs: list[int] = asked[self.asked].tolist()
        heat = columns.temperatures[rows]
        warm = np.flatnonzero(heat > 0)
        self.random: list[int] = warm.tolist()
        if self.random:
            self.all_random = len(warm) == len(rows)
            self.divides = bool((heat[warm] != 1).any())
            self.random_index = torch.from_numpy(warm).to(device, non_blocking=True)
            self.temperatures = temperatures[self.random_index][:, None]
            self.random_seeds = seeds[self.random_index]
            own = rows[warm]
            self.cut = Cut(columns.top_k[own], columns.top_p[own], vocab_size, device)
        self.chains: torch.Tensor | None = None
        """[rows, most guesses]: per row the entries that must be right, one after the other; beyond
        them a wrong one.
        """
        if inputs.guesses is not None:
            self.chains = torch.from_numpy(_chains(rows, inputs.guesses, stage.processors)).to(
                device
            )

    def fits(self, inputs: StepInputs) -> bool:
        """Say whether a step is of this kind."""
        same = self.rows is inputs.point_rows or self.rows == inputs.point_rows
        return same and self.version == inputs.version and self.points == inputs.points


def _in_order(
    order: torch.Tensor,
    asked: list[int],
    hidden: torch.Tensor,
    final: torch.Tensor,
    raw: torch.Tensor | None,
    pending: PendingResult,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Take what is said of points in another order, in which none leaves its row; `raw` is of the
    points `asked`.
    """
    for name in ("finite", "possible"):
        if (said := getattr(pending, name)) is not None:
            setattr(pending, name, said[order])
    if raw is not None:
        places = order.new_tensor(asked)
        raw = raw[torch.searchsorted(places, order[places])]
    return hidden[order], final[order], raw


def _chains(rows: Ints, guesses: Ints, processors: Processors) -> Ints:
    firsts = np.cumsum(guesses + 1) - guesses - 1
    alone = np.isin(rows[firsts], list(processors.follow_tokens()))
    steps = np.arange(int(guesses.max(initial=0)))
    used = (steps < guesses[:, None]) & ~alone[:, None]
    return np.where(used, firsts[:, None] + steps, len(rows))


class SamplingStage:
    """The second half of a step. Nothing in it reads a device value back."""

    def __init__(
        self,
        model: GeneratingModel,
        batch: Batch,
        processors: Processors,
        extensions: Extensions,
        mode: LogprobsMode,
        ops: Any,
    ) -> None:
        self.processors = processors
        self.added = processors.added
        self.removed = processors.removed
        self._model = model
        self._tells_tokens = "tokens" in inspect.signature(model.logits).parameters
        self._batch = batch
        self._extensions = extensions
        self._mode = mode
        self._best = ops.best
        self._truncate = ops.truncate
        self._draw = ops.draw
        self._company: _Company | None = None
        self._companies: dict[tuple[Sequence[int] | None, ...], _Company] = {}
        """Those of late: with guesses, a step is seldom like the one before and often like one of
        the last few.
        """

    def run(
        self, plan: StepPlan, inputs: StepInputs, hidden: torch.Tensor, errors: dict[int, str]
    ) -> PendingResult:
        """Sample the rows the plan names, write the tokens to the batch, and gather what was asked
        for.
        """
        pending = PendingResult(step=plan.step, errors=errors)
        pending.prompt_logprobs = self._prompt_logprobs(inputs, hidden, inputs.query_starts[1:])
        if inputs.samples:
            lasts = None if inputs.whole else inputs.at("lasts")
            picked = hidden if lasts is None else hidden.index_select(0, lasts)
            self._sample(inputs, picked, self._logits(picked, lasts), pending, plan.payloads)
        return pending

    def token_types(self, inputs: StepInputs) -> torch.Tensor | None:
        """Prompts of a model that generates are no pairs."""

    def take(self, inputs: StepInputs, tokens: torch.Tensor) -> None:
        """Write tokens that were sampled elsewhere to the batch."""
        self._batch.write(inputs, tokens, inputs.accepted)

    def _logits(self, hidden: torch.Tensor, tokens: torch.Tensor | slice | None) -> torch.Tensor:
        logits: Callable[..., torch.Tensor] = self._model.logits
        return logits(hidden, tokens) if self._tells_tokens else logits(hidden)

    def _sample(
        self,
        inputs: StepInputs,
        hidden: torch.Tensor,
        logits: torch.Tensor,
        pending: PendingResult,
        payloads: Mapping[str, bytes],
    ) -> None:
        """`logits` are [points, vocab] float32."""
        company = self._company
        if company is None or not company.fits(inputs):
            company = self._company = self._company_of(inputs)
        rows = SampleRows(
            company.rows,
            company.prompt_lens,
            inputs.lengths,
            company.row_index,
            inputs.at("point_lengths"),
            company.prompt_index,
            self._batch.token_ids,
            inputs.points,
            company.processed,
        )
        pending.rows = company.rows
        pending.points = company.points
        plain = not (company.random or self._extensions.changes_logits) and self.processors.are_idle
        if not plain:
            pending.finite = self._best(logits)[0].isfinite()
        raw = (
            logits[company.asked] if company.asked else None
        )  # a copy: processors may change logits in place
        logits = self._extensions.before_sample(logits, rows, payloads)
        pending.errors |= rows.errors
        logits, failed = self.processors.run(self.processors.shaping, logits, rows, self._name)
        pending.errors |= failed
        verified = inputs.guesses is not None
        scored = verified or (self._mode.startswith("processed") and raw is not None)
        tokens, values, final = self._choose(logits, rows, company, pending, scored)
        if plain:
            pending.finite = values.abs() < float("inf")
        else:
            pending.possible = values > float("-inf")
        if company.chains is not None:
            guessed = self._batch.flat_token_ids.index_select(0, inputs.at("destinations"))
            tokens, right, *order = self._extensions.verify(rows, guessed, tokens, final, payloads)
            if order:
                hidden, final, raw = _in_order(order[0], company.asked, hidden, final, raw, pending)
            right = torch.cat((right, right.new_zeros(1)))
            pending.accepted = right[company.chains].cumprod(dim=1).sum(dim=1) + 1
        self._batch.write(inputs, tokens, pending.accepted)
        pending.tokens = tokens
        if self._extensions.wants_sampled:
            accepted = torch.ones_like(tokens) if pending.accepted is None else pending.accepted
            assert inputs.ends is not None, "somebody follows where rows go on"
            self._extensions.sampled(Sampled(rows, tokens, accepted, inputs.ends, hidden), payloads)
        if raw is not None:
            scores = self._scores(raw, final[company.asked])
            pending.logprobs = (
                company.asked,
                gather(scores, tokens[company.asked], company.num_logprobs),
            )

    def _company_of(self, inputs: StepInputs) -> _Company:
        kind = tuple(inputs.point_rows), inputs.points and tuple(inputs.points)
        known = self._companies.get(kind)
        if known is None or not known.fits(inputs):
            if len(self._companies) >= MOST_COMPANIES:
                self._companies.clear()
            known = self._companies[kind] = _Company(
                self, inputs, self._batch, self._model.vocab_size
            )
        return known

    def _choose(
        self,
        logits: torch.Tensor,
        rows: SampleRows,
        company: _Company,
        pending: PendingResult,
        scored: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the chosen tokens [n], their final logits [n], and all final logits where they are
        `scored`.
        """
        if not company.random:
            values, tokens = self._best(logits)
            return tokens, values, logits
        whole = company.all_random
        index = company.random_index
        scaled = logits if whole else logits.index_select(0, index)
        if company.divides:
            scaled = scaled.div_(company.temperatures)
        positions = rows.length_index if whole else rows.length_index[index]
        if any(active.rows for active in self.processors.trimming):
            part = rows if whole else rows.select(company.random)
            scaled, failed = self.processors.run(self.processors.trimming, scaled, part, self._name)
            pending.errors |= failed
        if company.cut.narrows:
            scaled = self._truncate(scaled, company.cut)
        drawn = self._draw(scaled, company.random_seeds, positions)
        chances = scaled.gather(1, drawn[:, None])[:, 0]
        if whole:
            return drawn, chances, scaled
        values, tokens = self._best(logits)
        tokens[index], values[index] = drawn, chances
        if scored:
            logits[index] = scaled
        return tokens, values, logits

    def _scores(self, raw: torch.Tensor, final: torch.Tensor) -> torch.Tensor:
        """Return what log-probabilities report, as `logprobs_mode` says."""
        scores = raw if self._mode.startswith("raw") else final
        return scores.log_softmax(dim=-1) if self._mode.endswith("logprobs") else scores

    def _prompt_logprobs(
        self, inputs: StepInputs, hidden: torch.Tensor, ends: list[int]
    ) -> list[tuple[int, Gathered]]:
        """Return, per row that asked, the scores of the prompt tokens that follow this step's
        positions.
        """
        out = []
        asking = self._batch.prompt_logprobs_rows
        for i, row in enumerate(inputs.rows if asking else ()):
            if row not in asking:
                continue
            request = self._request(row)
            wanted = request.sampling.prompt_logprobs or 0
            first = ends[i] - inputs.counts[i]
            start = inputs.starts[i]
            count = min(inputs.counts[i], request.prompt_len - 1 - start)
            for at in range(0, count, PROMPT_POSITIONS):
                size = min(PROMPT_POSITIONS, count - at)
                own = slice(first + at, first + at + size)
                logits = self._logits(hidden[own], own)
                following = self._batch.token_ids[row, start + 1 + at : start + 1 + at + size]
                out.append((row, gather(self._scores(logits, logits), following, [wanted] * size)))
        return out

    def _name(self, row: int) -> str:
        return self._request(row).request_id

    def _request(self, row: int) -> NewRow:
        request = self._batch.requests[row]
        assert request is not None, f"row {row} computes without a request"
        return request
