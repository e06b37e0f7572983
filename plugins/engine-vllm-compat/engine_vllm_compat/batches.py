"""Base classes of vLLM's logits processors, and their batch updates."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from core.api import SamplingParams

RequestLogitsProcessor = Callable[..., torch.Tensor]
"""Function (output tokens, logits [vocab]) or (prompt, output, logits) -> logits."""


class MoveDirectionality(Enum):
    """Kind of a move between two batch indices."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


@dataclass(frozen=True)
class BatchUpdate:
    """Changes since the last step, to be applied in this order."""

    batch_size: int
    removed: Sequence[int]
    """Batch indices of removed requests."""
    added: Sequence[tuple[int, SamplingParams, list[int] | None, list[int]]]
    """Batch index, parameters, prompt tokens and output tokens (a growing list)."""
    moved: Sequence[tuple[int, int, MoveDirectionality]]
    """Moves (from index, to index, kind)."""


class LogitsProcessor(ABC):
    """Modifies the logits of a batch."""

    @classmethod  # noqa: B027 - optional to override
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise `ValueError` for unsupported parameters."""

    @abstractmethod
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None: ...

    @abstractmethod
    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits [requests, vocab]."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Return whether the argmax never changes."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Apply the batch changes, before each step."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Processor with one function per request."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.req_info: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """Return the function of a request; None for none."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Create functions for new requests."""
        process_dict_updates(self.req_info, batch_update, self._create)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Apply each function to its row."""
        for index, function in self.req_info.items():
            logits[index] = function(logits[index])
        return logits

    def _create(self, params: SamplingParams, prompt: list[int] | None, output: list[int]) -> Any:
        function = self.new_req_logits_processor(params)
        if function is None:
            return None
        tokens = [prompt, output] if len(inspect.signature(function).parameters) == 3 else [output]
        return partial(function, *tokens)


def process_dict_updates(
    req_entries: dict[int, Any],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, list[int] | None, list[int]], Any],
) -> bool:
    """Update a state by batch index; return whether it changed."""
    if batch_update is None:
        return False
    before = dict(req_entries)
    for index in batch_update.removed:
        req_entries.pop(index, None)
    for index, params, prompt, output in batch_update.added:
        state = new_state(params, prompt, output)
        if state is None:
            req_entries.pop(index, None)
        else:
            req_entries[index] = state
    for source, target, direction in batch_update.moved:
        first = req_entries.pop(source, None)
        second = req_entries.pop(target, None)
        if first is not None:
            req_entries[target] = first
        if second is not None and direction is MoveDirectionality.SWAP:
            req_entries[source] = second
    return before != req_entries


class VllmConfig:
    """The parts of vLLM's configuration that exist here: `model_config`, `scheduler_config`."""

    def __init__(self, model: str, vocab_size: int, max_model_len: int, max_num_seqs: int) -> None:
        self.model_config = SimpleNamespace(
            model=model,
            tokenizer=model,
            max_model_len=max_model_len,
            get_vocab_size=lambda: vocab_size,
        )
        self.scheduler_config = SimpleNamespace(max_num_seqs=max_num_seqs)
        self.speculative_config = None
        self.additional_config: dict[str, Any] = {}
