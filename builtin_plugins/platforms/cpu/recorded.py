"""Recorded small steps: one call of the C++ library replays the model for a number of tokens."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Final

import torch
from core_kernels.arena import ProgramMemory
from core_kernels.library import Library
from core_kernels.program import Program, Unrecordable
from core_kernels.recording import OpaqueValue, Recording

from core.api.models import ForwardBatch, Model

MAX_RECORDED_TOKENS: Final = 256
"""Largest recorded step; Python's overhead is small in larger ones."""
READ_BY_HOST: Final = ("rows", "starts", "counts", "prompt_lens", "token_ids")
"""Fields of a step that a recorded model must not read."""

_Kind = tuple[int, int]
"""Number of tokens and adapter set of a step."""

log = logging.getLogger(__name__)


class RecordedModel:
    """Calls the model, or replays its recorded step with the same number of tokens.

    Plain calls are the reference.
    """

    def __init__(self, model: Model, library: Library) -> None:
        self._model = model
        self._library = library
        self._programs: dict[_Kind, tuple[Program, torch.Tensor, torch.Tensor]] = {}
        self._room: Final = ProgramMemory()
        self._seen: set[_Kind] = set()
        self._refused: dict[int, str] = {}
        """Reason why steps are not recorded, by adapter set."""

    def __call__(self, batch: ForwardBatch) -> torch.Tensor:
        """Return the hidden states [num_tokens, hidden]."""
        size = len(batch.input_ids)
        adapters = batch.adapter_set
        if adapters in self._refused or not 0 < size <= MAX_RECORDED_TOKENS or not _is_plain(batch):
            return self._model(batch)
        known = self._programs.get((size, adapters))
        if known is None:
            if (size, adapters) in self._seen:
                return self._record(batch)
            self._seen.add((size, adapters))
            return self._model(batch)
        program, ids, positions = known
        ids.copy_(batch.input_ids)
        positions.copy_(batch.positions)
        return program.run(batch.attention).clone()

    def _record(self, batch: ForwardBatch) -> torch.Tensor:
        ids = batch.input_ids.clone()
        positions = batch.positions.clone()
        recording = Recording(self._library)
        untold: dict[str, Any] = {
            name: OpaqueValue(name, getattr(batch, name), recording) for name in READ_BY_HOST
        }
        if not batch.adapter_set and _has_adapters(self._model):
            recording.refuse("adapters select their weights for each step")
        with recording:
            out = self._model(replace(batch, input_ids=ids, positions=positions, **untold))
        try:
            program = Program(self._library, recording, batch.attention, out, self._room)
        except Unrecordable as error:
            self._refused[batch.adapter_set] = str(error)
            log.debug("steps are not recorded: %s", error)
            return out
        self._forget_older(batch.adapter_set)
        self._programs[len(ids), batch.adapter_set] = program, ids, positions
        return out

    def _forget_older(self, adapters: int) -> None:
        """Drop recordings of earlier adapter sets."""
        older = [kind for kind in self._programs if adapters and kind[1] not in (0, adapters)]
        for kind in older:
            del self._programs[kind]


def _has_adapters(model: Model) -> bool:
    parts = model.modules() if isinstance(model, torch.nn.Module) else ()
    return any(getattr(part, "adapter", None) is not None for part in parts)


def _is_plain(batch: ForwardBatch) -> bool:
    """Return whether a step has only the inputs of a recorded step."""
    given = batch.embeddings is None and batch.token_types is None and batch.rope_positions is None
    return given and batch.item_states is None and not (batch.entering or batch.adapted)
