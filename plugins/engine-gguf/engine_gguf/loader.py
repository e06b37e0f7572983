"""Streams the weights of GGUF files under their Hugging Face names, as blocks or plain numbers.

Files are memory-mapped, and a copied tensor's pages are released at once. Loading takes the
model's memory and one copied tensor, so large tensors come first, when little else is loaded.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Final

import torch

from builtin_plugins.quant_methods.api import DequantizedFallback, StoredFormat
from core.api import EngineConfig, ModelError
from core.api.models import ModelSource
from engine_gguf.files import read_headers
from engine_gguf.fused_tensors import TensorFuser
from engine_gguf.header import TensorEntry
from engine_gguf.tensor_types import TensorType, dequantize, view_stored
from engine_gguf.weights import WeightPlan, plan_weights

POPULATE_READ: Final = 22
"""MADV_POPULATE_READ of Linux 5.14: maps a range of pages with one call."""
LARGE: Final = 10
"""A tensor with more than 1 / LARGE of all bytes is large."""
_DTYPES: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class GgufLoader:
    """The weights of one model, file by file: large tensors, then the others in data order."""

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        facts = getattr(source.hf_config, "quantization_config", None) or {}
        if facts.get("quant_method") != "gguf":
            raise ModelError(
                f"--load-format gguf loads GGUF files; got {source.name!r}. Remove --load-format."
            )
        self._headers = read_headers(Path(facts["file"]))
        self._config = vars(source.hf_config)
        self._plans = plan_weights(self._headers, self._config)
        # Dequantized blocks need no more precision than the model's dtype.
        self._dtype = _DTYPES.get(config.model.dtype, torch.float32)
        self.reading: Path | None = None
        """File that `tensors` is reading."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor); blocks are uint8 [rows, blocks of a row, bytes of a block]."""
        fuser = TensorFuser(self._config)
        self._fallback().log_once()
        large = self.total_bytes() // LARGE
        for header, plans in zip(self._headers, self._plans, strict=True):
            self.reading = header.path
            with header.path.open("rb") as file:
                whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            for plan in sorted(plans, key=lambda plan: -max(plan.stored.num_bytes, large)):
                if plan.stored.start + plan.stored.num_bytes > len(whole):
                    raise ModelError(
                        f"{header.path} was truncated while it was read. Load it again."
                    )
                yield from fuser.add(plan, self._arranged(_view(whole, plan.stored), plan))

    def headers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, meta tensor): names, types and shapes only."""
        fuser = TensorFuser(self._config)
        for plans in self._plans:
            for plan in plans:
                data = torch.empty(plan.stored.num_bytes, dtype=torch.uint8, device="meta")
                yield from fuser.add(plan, self._arranged(data, plan))

    def total_bytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(tensor.num_bytes for header in self._headers for tensor in header.tensors)

    def _fallback(self) -> DequantizedFallback:
        """Return the count of weights in blocks that no kernel multiplies."""
        found = DequantizedFallback("gguf")
        for plan in (plan for plans in self._plans for plan in plans if not plan.blocks):
            if plan.stored.kind.inputs > 1:
                found.add(prod(plan.stored.shape), DequantizedFormat(plan.stored.kind), self._dtype)
        return found

    def _arranged(self, data: torch.Tensor, plan: WeightPlan) -> torch.Tensor:
        """Return a tensor's blocks or numbers as the model expects them."""
        tensor = view_stored(data, plan.stored.kind, plan.stored.shape)
        if plan.own is not None:
            axis, first, last = plan.own
            tensor = tensor.narrow(axis, first, last - first)
        if not plan.blocks:
            tensor = dequantize(tensor, plan.stored.kind, self._dtype)
        if plan.target.transform is None:
            return tensor
        try:
            return plan.target.transform.apply(tensor, self._config)
        except (ModelError, RuntimeError) as error:
            raise ModelError(f"tensor {plan.stored.name}: {error}") from error


class DequantizedFormat(StoredFormat):
    """Describes blocks that are dequantized on load."""

    def __init__(self, kind: TensorType) -> None:
        self.bits_per_weight = 8 * kind.num_bytes / kind.inputs


def _view(whole: mmap.mmap, stored: TensorEntry) -> torch.Tensor:
    """Return the bytes of a tensor; their pages are released with the last reference."""
    end = stored.start + stored.num_bytes
    first = stored.start // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(OSError, ValueError):  # not supported on this system
        whole.madvise(POPULATE_READ, first, end - first)
    part = memoryview(whole)[stored.start : end]
    weakref.finalize(part, _release, whole, stored.start, end).atexit = False
    return torch.frombuffer(part, dtype=torch.uint8)


def _release(whole: mmap.mmap, start: int, end: int) -> None:
    """Release the pages that hold only these bytes."""
    page = mmap.PAGESIZE
    first = -(-start // page) * page
    last = end // page * page
    if first < last and hasattr(whole, "madvise"):
        whole.madvise(mmap.MADV_DONTNEED, first, last - first)
