"""Adapters for logits processors of vLLM; each is an attribute named by its entry point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from core.api import EngineConfig, InvalidRequest, SamplingParams
from core.api.sampling import SamplerContext, SampleRows
from engine_vllm_compat.batches import BatchUpdate, LogitsProcessor, MoveDirectionality, VllmConfig
from engine_vllm_compat.discovery import LOGITS_PROCESSORS, points, provide


class Adapter:
    """Adapter for one vLLM logits processor, which sees every request in a dense batch.

    A request has a batch index while it has a row. When a request leaves, the last one takes its
    index, as in vLLM.
    """

    inner: ClassVar[type[LogitsProcessor]]
    params: tuple[str, ...] = ()
    follows_tokens = True

    def __init__(self, context: SamplerContext, config: EngineConfig) -> None:
        vllm_config = VllmConfig(
            config.model.model, context.vocab_size, context.max_model_len, context.max_num_seqs
        )
        self._inner = self.inner(vllm_config, torch.device(context.device), False)
        self.argmax_invariant = self._inner.is_argmax_invariant()
        self._rows: list[int] = []
        """Rows by batch index."""
        self._outputs: dict[int, list[int]] = {}
        """Output tokens by row; the processor keeps references to these lists."""
        self._removed: list[int] = []
        self._added: list[tuple[int, SamplingParams, list[int] | None, list[int]]] = []
        self._moved: list[tuple[int, int, MoveDirectionality]] = []

    @classmethod
    def validate(cls, sampling: SamplingParams, vocab_size: int) -> None:
        """Reject parameters that the processor rejects."""
        try:
            cls.inner.validate_params(sampling)
        except ValueError as error:
            raise InvalidRequest("extra_args", str(error)) from error

    def wants(self, sampling: SamplingParams) -> bool:
        """Return True: only the processor knows which requests it changes."""
        return True

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Append a request to the batch."""
        output = list(token_ids[prompt_len:])
        self._outputs[row] = output
        self._added.append((len(self._rows), sampling, list(token_ids[:prompt_len]), output))
        self._rows.append(row)

    def removed(self, row: int) -> None:
        """Remove a request and fill its index with the last one."""
        self._send_update()
        index = self._rows.index(row)
        last = len(self._rows) - 1
        self._removed.append(index)
        if index != last:
            self._moved.append((last, index, MoveDirectionality.UNIDIRECTIONAL))
            self._rows[index] = self._rows[last]
        self._rows.pop()
        del self._outputs[row]
        self._send_update()

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Apply the processor to the whole batch; requests outside this step have zero logits."""
        for row, prompt_len, length in zip(rows.rows, rows.prompt_lens, rows.lengths, strict=True):
            output = self._outputs[row]
            output += rows.token_ids[row, prompt_len + len(output) : length].tolist()
        self._send_update(always=True)
        if list(rows.rows) == self._rows:
            return self._inner.apply(logits)
        index_of = {row: index for index, row in enumerate(self._rows)}
        indices = torch.tensor([index_of[row] for row in rows.rows], device=logits.device)
        whole = logits.new_zeros(len(self._rows), logits.shape[1])
        whole[indices] = logits
        return self._inner.apply(whole)[indices]

    def _send_update(self, always: bool = False) -> None:
        """Send the batch changes to the processor; `always` also sends an empty update."""
        update = None
        if self._removed or self._added or self._moved:
            update = BatchUpdate(len(self._rows), self._removed, self._added, self._moved)
            self._removed = []
            self._added = []
            self._moved = []
        if update is not None or always:
            self._inner.update_state(update)


def __getattr__(name: str) -> type[Adapter]:
    """Import and return the adapter of an entry point.

    Raises `AttributeError` for an unknown name.
    """
    for point in points(LOGITS_PROCESSORS):
        if point.name == name:
            provide()
            found = point.load()
            if not (isinstance(found, type) and issubclass(found, LogitsProcessor)):
                raise TypeError(f"vLLM's plugin {name!r} is {found!r}; expected a LogitsProcessor.")
            return type(found.__name__, (Adapter,), {"inner": found, "__doc__": found.__doc__})
    raise AttributeError(name)
