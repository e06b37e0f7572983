"""Streams the weights of GGUF files under their Hugging Face names: blocks as they are, or plain
numbers.

Files are memory-mapped, and a tensor that has been copied gives its pages back at once. So loading
takes the model's own memory and little more: while one tensor is copied it is there twice, so large
ones come first, when little else is there.
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

from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.keeping import Unaided
from core.api import EngineConfig, ModelError, ModelSource
from engine_gguf.files import read_headers
from engine_gguf.header import Stored
from engine_gguf.joined import Joined
from engine_gguf.kinds import Kind
from engine_gguf.numbers import as_plain, as_stored
from engine_gguf.weights import Plan, plan_weights

POPULATE_READ: Final = 22
"""MADV_POPULATE_READ of Linux 5.14: the pages of a range all at once, instead of one fault for
every few.
"""
LARGE: Final = 10
"""A tensor that is more than such a part of all is large."""
_DTYPES: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class GgufLoader:
    """The weights of one model, file by file: large ones, then all others in the order of their
    bytes.
    """

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        facts = getattr(source.hf_config, "quantization_config", None) or {}
        if facts.get("quant_method") != "gguf":
            raise ModelError(
                f"{source.name!r} is no GGUF file, and --load-format gguf reads nothing else. "
                "Leave --load-format out."
            )
        self._headers = read_headers(Path(facts["file"]))
        self._config = vars(source.hf_config)
        self._plans = plan_weights(self._headers, self._config)
        # Blocks that are made plain are no more exact than their model is computed.
        self._dtype = _DTYPES.get(config.model.dtype, torch.float32)
        self.reading: Path | None = None
        """The file that `tensors` is at."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor); blocks are uint8 [rows, blocks of a row, bytes of a block]."""
        joined = Joined(self._config)
        self._unaided().say()
        large = self.total_bytes() // LARGE
        for header, plans in zip(self._headers, self._plans, strict=True):
            self.reading = header.path
            with header.path.open("rb") as file:
                whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            for plan in sorted(plans, key=lambda plan: -max(plan.stored.num_bytes, large)):
                if plan.stored.start + plan.stored.num_bytes > len(whole):
                    raise ModelError(
                        f"{header.path} has become shorter while it was read. Load it again."
                    )
                yield from joined.add(plan, self._arranged(_view(whole, plan.stored), plan))

    def headers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor) without memory: names, types and shapes alone."""
        joined = Joined(self._config)
        for plans in self._plans:
            for plan in plans:
                data = torch.empty(plan.stored.num_bytes, dtype=torch.uint8, device="meta")
                yield from joined.add(plan, self._arranged(data, plan))

    def total_bytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(tensor.num_bytes for header in self._headers for tensor in header.tensors)

    def _unaided(self) -> Unaided:
        """Return the weights whose blocks no kernel multiplies by, counted."""
        found = Unaided("gguf")
        for plan in (plan for plans in self._plans for plan in plans if not plan.blocks):
            if plan.stored.kind.inputs > 1:
                found.add(prod(plan.stored.shape), Unblocked(plan.stored.kind), self._dtype)
        return found

    def _arranged(self, data: torch.Tensor, plan: Plan) -> torch.Tensor:
        """Return a tensor's blocks or numbers as the model has them."""
        tensor = as_stored(data, plan.stored.kind, plan.stored.shape)
        if plan.own is not None:
            axis, first, last = plan.own
            tensor = tensor.narrow(axis, first, last - first)
        if not plan.blocks:
            tensor = as_plain(tensor, plan.stored.kind, self._dtype)
        if plan.place.change is None:
            return tensor
        try:
            return plan.place.change.apply(tensor, self._config)
        except (ModelError, RuntimeError) as error:
            raise ModelError(f"tensor {plan.stored.name}: {error}") from error


class Unblocked(StoredFormat):
    """What is known of blocks that become plain."""

    def __init__(self, kind: Kind) -> None:
        self.stored_bits = 8 * kind.num_bytes / kind.inputs


def _view(whole: mmap.mmap, stored: Stored) -> torch.Tensor:
    """Return the bytes of a tensor; when nothing uses them any more, their pages are given back."""
    end = stored.start + stored.num_bytes
    first = stored.start // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(OSError, ValueError):  # systems that cannot read the pages as they are touched
        whole.madvise(POPULATE_READ, first, end - first)
    part = memoryview(whole)[stored.start : end]
    weakref.finalize(part, _release, whole, stored.start, end).atexit = False
    return torch.frombuffer(part, dtype=torch.uint8)


def _release(whole: mmap.mmap, start: int, end: int) -> None:
    """Give back the pages that hold nothing but these bytes."""
    page = mmap.PAGESIZE
    first = -(-start // page) * page
    last = end // page * page
    if first < last and hasattr(whole, "madvise"):
        whole.madvise(mmap.MADV_DONTNEED, first, last - first)
