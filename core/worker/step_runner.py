"""The device work of a step: forward pass, sampling, and the exchange between
pipeline stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch

from core.contracts.attention import AttentionBackend, ForwardBatch
from core.contracts.runners import Stage
from core.model_spec.parallel import Pipeline
from core.models.layers.token_exchange import TokenExchange
from core.step import StepPlan
from core.worker.batch import InputBatch
from core.worker.extensions import Extensions
from core.worker.inputs import StepInputs
from core.worker.result import PendingResult


@dataclass(slots=True)
class StepRunner:
    """Launches the device work of prepared steps, in stream order."""

    batch: InputBatch
    stage: Stage
    extensions: Extensions
    forward: Callable[[ForwardBatch], torch.Tensor]
    """The model, as the platform wraps it."""
    backend: AttentionBackend
    prepare: Callable[[Any], Any]
    """Plans the attention or states of a KV group."""
    pipeline: Pipeline
    device: str
    group_of_layer: list[int]
    """KV group of each caching layer of this rank."""
    states: list[tuple[int, Any]]
    """(KV group, states) of the recurrent layers."""
    _exchange: TokenExchange = field(init=False)

    def __post_init__(self) -> None:
        self._exchange = TokenExchange(self.pipeline, self.device)

    @property
    def needs_exact_positions(self) -> bool:
        """Whether the host must know the rows' exact positions in
        each step.
        """
        return bool(self.states) or not getattr(self.backend, "device_lengths", False)

    @torch.inference_mode()
    def run(self, plan: StepPlan, inputs: StepInputs) -> PendingResult:
        """Launch a step's device work; reads nothing back."""
        batch = self.batch
        extensions = self.extensions
        self._exchange.write_tokens(inputs.rows)
        errors = self._update_rows(plan, inputs)
        num_rows = len(plan.decode_rows) + len(plan.samples)
        batch.tracks_next_positions = extensions.begin(num_rows, plan.payloads)
        if inputs.rows:
            pending = self._compute(plan, inputs, errors)
        else:
            pending = PendingResult(plan.step, errors)
        pending.payloads = extensions.after_sample(plan.payloads)
        pending.start_copy()
        return pending

    def _compute(self, plan: StepPlan, inputs: StepInputs, errors: dict[int, str]) -> PendingResult:
        """Run the model and the sampler."""
        extensions = self.extensions
        batch = self.forward_batch(inputs)
        extensions.before_forward(batch, plan.payloads)
        hidden = self.forward(batch)[: inputs.num_tokens]
        extensions.after_forward(batch, hidden, plan.payloads)
        run_stage = partial(self.stage.run, plan, inputs, hidden, errors)
        sample = cast("Callable[[], PendingResult]", run_stage)
        if self.pipeline.size == 1:
            pending = sample()
        elif self.pipeline.is_last:
            pending = self._exchange.send(inputs, sample)
        else:
            pending = PendingResult(plan.step, errors={})
            write = self._token_writer(inputs)
            self._exchange.receive(inputs, pending, write)
        if pending.accepted is not None:
            for group, states in self.states:
                inputs.groups[group].keep(pending.accepted, states)
        return pending

    def forward_batch(self, inputs: StepInputs) -> ForwardBatch:
        batch = self.batch
        groups = batch.gather(inputs)
        prepared = {g: self.prepare(groups[g]) for g in set(self.group_of_layer)}
        types = self.stage.token_types(inputs) if inputs.rows else None
        rows = inputs.rows
        starts = inputs.starts
        counts = inputs.counts
        if inputs.padding:
            rows = inputs.row_index.tolist()
            starts = inputs.row_starts.tolist()
            counts = inputs.row_counts.tolist()
            if types is not None:
                types = torch.nn.functional.pad(types, (0, inputs.padding))
        return ForwardBatch(
            input_ids=inputs.input_ids,
            positions=inputs.array("positions"),
            attention=[prepared[group] for group in self.group_of_layer],
            rows=rows,
            starts=starts,
            counts=counts,
            prompt_lens=batch.columns.prompt_lens[inputs.row_index].tolist(),
            token_ids=batch.token_ids,
            token_types=types,
            entering=inputs.encoder_rows,
        )

    def _token_writer(self, inputs: StepInputs) -> Callable[[torch.Tensor], None]:
        """Return a function that writes this step's tokens, between two later
        steps.
        """
        batch = self.batch
        tracks = batch.tracks_next_positions
        # The next step overwrites the originals.
        inputs.on_device = [array.clone() for array in inputs.on_device]

        def write(tokens: torch.Tensor) -> None:
            batch.tracks_next_positions = tracks
            self.stage.write_tokens(inputs, tokens)

        return write

    def _update_rows(self, plan: StepPlan, inputs: StepInputs) -> dict[int, str]:
        """Apply the plan's differences; return the errors of requests that
        failed to enter.
        """
        for row in plan.ended:
            self.stage.removed(row)
        self.batch.upload(inputs)
        errors = {}
        for new in plan.new:
            error = self.stage.added(new)
            if error is not None:
                errors[new.row] = error
        return errors
