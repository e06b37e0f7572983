"""Logits processors of vLLM's entry points at work: the name of one is the name of its class here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from core.api import EngineConfig, InvalidRequest, SamplerContext, SampleRows, SamplingParams
from engine_vllm_compat.batches import BatchUpdate, LogitsProcessor, MoveDirectionality, VllmConfig
from engine_vllm_compat.discovery import LOGITS_PROCESSORS, points, provide


class Adapted:
    """One processor of vLLM's kind, which sees every request, in a batch without gaps.

    A request has a place as long as it has a row. Where one leaves, the last takes its place, as
    vLLM does it.
    """

    inner: ClassVar[type[LogitsProcessor]]
    params: tuple[str, ...] = ()
    follows_tokens = True

    def __init__(self, context: SamplerContext, config: EngineConfig) -> None:
        told = VllmConfig(
            config.model.model, context.vocab_size, context.max_model_len, context.max_num_seqs
        )
        self._inner = self.inner(told, torch.device(context.device), False)
        self.argmax_invariant = self._inner.is_argmax_invariant()
        self._rows: list[int] = []
        """By place."""
        self._outputs: dict[int, list[int]] = {}
        """By row: the tokens that the processor has a reference to."""
        self._removed: list[int] = []
        self._added: list[tuple[int, SamplingParams, list[int] | None, list[int]]] = []
        self._moved: list[tuple[int, int, MoveDirectionality]] = []

    @classmethod
    def validate(cls, sampling: SamplingParams, vocab_size: int) -> None:
        """Refuse what the processor refuses."""
        try:
            cls.inner.validate_params(sampling)
        except ValueError as error:
            raise InvalidRequest("extra_args", str(error)) from error

    def wants(self, sampling: SamplingParams) -> bool:
        """Every request is shown: which of them it changes only the processor knows."""
        return True

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Give a request the place behind all others."""
        output = list(token_ids[prompt_len:])
        self._outputs[row] = output
        self._added.append((len(self._rows), sampling, list(token_ids[:prompt_len]), output))
        self._rows.append(row)

    def removed(self, row: int) -> None:
        """Close the gap that a request leaves."""
        self._tell()
        place = self._rows.index(row)
        last = len(self._rows) - 1
        self._removed.append(place)
        if place != last:
            self._moved.append((last, place, MoveDirectionality.UNIDIRECTIONAL))
            self._rows[place] = self._rows[last]
        self._rows.pop()
        del self._outputs[row]
        self._tell()

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Let the processor change the logits of the whole batch; requests that sit this step out
        have zeros there.
        """
        for row, prompt_len, length in zip(rows.rows, rows.prompt_lens, rows.lengths, strict=True):
            output = self._outputs[row]
            output += rows.token_ids[row, prompt_len + len(output) : length].tolist()
        self._tell(always=True)
        if list(rows.rows) == self._rows:
            return self._inner.apply(logits)
        place_of = {row: place for place, row in enumerate(self._rows)}
        places = torch.tensor([place_of[row] for row in rows.rows], device=logits.device)
        whole = logits.new_zeros(len(self._rows), logits.shape[1])
        whole[places] = logits
        return self._inner.apply(whole)[places]

    def _tell(self, always: bool = False) -> None:
        """Tell the processor what has changed; before each step also that nothing has."""
        update = None
        if self._removed or self._added or self._moved:
            update = BatchUpdate(len(self._rows), self._removed, self._added, self._moved)
            self._removed = []
            self._added = []
            self._moved = []
        if update is not None or always:
            self._inner.update_state(update)


def __getattr__(name: str) -> type[Adapted]:
    """Return the class of an entry point, imported now.

    Raises `AttributeError` for an unknown name.
    """
    for point in points(LOGITS_PROCESSORS):
        if point.name == name:
            provide()
            found = point.load()
            if not (isinstance(found, type) and issubclass(found, LogitsProcessor)):
                raise TypeError(f"vLLM's plugin {name!r} is {found!r}, no LogitsProcessor.")
            return type(found.__name__, (Adapted,), {"inner": found, "__doc__": found.__doc__})
    raise AttributeError(name)
