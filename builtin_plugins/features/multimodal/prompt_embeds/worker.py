"""Worker half: puts the embeddings of prompts into the batches of their steps."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from builtin_plugins.features.multimodal.client_tensors import ClientTensor
from core.api import ConfigError
from core.api.execution import LoadedParts, NewRow, WorkerParts
from core.api.models import ForwardBatch
from core.model_spec.tower import PROMPT_EMBEDS

_decode = msgspec.msgpack.Decoder(ClientTensor).decode


class PromptEmbedsWorker:
    """The embeddings of rows with prompts that are being computed."""

    name = PROMPT_EMBEDS

    def __init__(self) -> None:
        self._known: dict[int, tuple[NewRow, torch.Tensor]] = {}

    def loaded(self, parts: LoadedParts) -> list[Any]:
        """Check the model. Raises `ConfigError`."""
        stages = parts.config.parallel.pipeline_parallel_size
        if stages > 1:
            raise ConfigError(
                f"--pipeline-parallel-size: got {stages}; expected 1 with --enable-prompt-embeds. "
                "Remove one of them."
            )
        self._model: Any = parts.model
        return []

    def attach(self, parts: WorkerParts) -> None:
        """Set the batch."""
        self._batch = parts.batch

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """Set the embeddings of a step with positions of such prompts."""
        embeddings: torch.Tensor | None = batch.embeddings
        token = 0
        for row, start, count in zip(batch.rows, batch.starts, batch.counts, strict=True):
            known = self._rows_of(row, start)
            if known is not None:
                if embeddings is None:
                    embeddings = self._model.embedded(batch.input_ids).clone()
                part = known[start : start + count]
                embeddings[token : token + len(part)] = part.to(embeddings)
            token += count
        batch.embeddings = embeddings

    def _rows_of(self, row: int, start: int) -> torch.Tensor | None:
        """Return the embeddings of a row's prompt; None if the step computes none of them."""
        requests = self._batch.requests
        new = requests[row] if row < len(requests) else None
        data = None if new is None else new.features.get(PROMPT_EMBEDS)
        if new is None or data is None or start >= new.prompt_len:
            self._known.pop(row, None)
            return None
        known = self._known.get(row)
        if known is None or known[0] is not new:
            tensor = _decode(data)
            read = torch.frombuffer(bytearray(tensor.data), dtype=getattr(torch, tensor.dtype))
            known = self._known[row] = new, read.reshape(tensor.shape)
        return known[1]
