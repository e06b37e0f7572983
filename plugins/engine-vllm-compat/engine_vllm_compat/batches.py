"""Logits processors as vLLM has them: base classes, and what they are told of the batch."""

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
"""Takes the output's tokens, or the prompt's and the output's, and the logits [vocab]; returns
logits.
"""


class MoveDirectionality(Enum):
    """How two places of the batch change."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


@dataclass(frozen=True)
class BatchUpdate:
    """What has changed since the last step, to be taken in this order."""

    batch_size: int
    removed: Sequence[int]
    """Places whose request has left."""
    added: Sequence[tuple[int, SamplingParams, list[int] | None, list[int]]]
    """Places with parameters, the prompt's tokens and the output's, a list that grows with the
    output.
    """
    moved: Sequence[tuple[int, int, MoveDirectionality]]
    """Requests that have gone from one place to another."""


class LogitsProcessor(ABC):
    """Changes the logits of a batch."""

    @classmethod  # noqa: B027 - it may be left as it is
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise `ValueError` for parameters that it cannot serve."""

    @abstractmethod
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None: ...

    @abstractmethod
    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits [requests, vocab]."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Say whether the best token never changes."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Take what has changed, before each step."""


class AdapterLogitsProcessor(LogitsProcessor):
    """A processor that makes a function for each request."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.req_info: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """Return the function of a request, or None for one that wants none."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Make functions for who has come."""
        process_dict_updates(self.req_info, batch_update, self._made)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Call each function with its row."""
        for place, function in self.req_info.items():
            logits[place] = function(logits[place])
        return logits

    def _made(self, params: SamplingParams, prompt: list[int] | None, output: list[int]) -> Any:
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
    """Bring a state by place up to date; say whether it has changed."""
    if batch_update is None:
        return False
    before = dict(req_entries)
    for place in batch_update.removed:
        req_entries.pop(place, None)
    for place, params, prompt, output in batch_update.added:
        state = new_state(params, prompt, output)
        if state is None:
            req_entries.pop(place, None)
        else:
            req_entries[place] = state
    for one, other, direction in batch_update.moved:
        first = req_entries.pop(one, None)
        second = req_entries.pop(other, None)
        if first is not None:
            req_entries[other] = first
        if second is not None and direction is MoveDirectionality.SWAP:
            req_entries[one] = second
    return before != req_entries


class VllmConfig:
    """As much of vLLM's configuration as can be said of an engine: of `model_config` and
    `scheduler_config`.
    """

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
