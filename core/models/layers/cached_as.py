"""In what numbers a layer's keys and values are cached, and by which factors.

Knows no format of weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import torch

from core.errors import ModelError
from core.models.layers.kept import method_of
from core.models.layers.weights import WeightMap, fill

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.contracts.parallel import ParallelGroup

log = logging.getLogger(__name__)

MEANT: Final[Mapping[str, str]] = MappingProxyType(
    {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
)
"""Words of `--kv-cache-dtype` that are no dtype's name."""
IN_BYTES: Final = ("float8_e4m3fn", "float8_e5m2", "int8")


class CachedAs:
    """What one layer's cache holds, by its spec, by who asked for it, and by the scales of the
    checkpoint.
    """

    def __init__(
        self,
        dtype: str | None,
        stored: Mapping[str, str],
        heads: int,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        """`stored`: the checkpoint's prefix of what makes "k" and "v"; `heads`: the model's
        key-value heads, split over ranks.

        Raises `ModelError` for what the attention backend does not cache.
        """
        prefix = stored["k"].rpartition(".")[0]
        own = str(context.dtype).removeprefix("torch.")
        asked = (
            None if context.kv_dtype == "auto" else MEANT.get(context.kv_dtype, context.kv_dtype)
        )
        backend = context.attention
        self._name = type(context.attention).__name__
        known = () if backend is None else getattr(backend, "kv_dtypes", ())
        wished: str | None = method_of(context.quant, "kv_dtype", prefix)
        if backend is not None and wished not in (None, own, *known):
            weights.once(f"caches as {wished}", partial(_tell, wished, own, self._name))
            wished = None
        other = asked or dtype or wished
        self.other_dtype = None if other == own else other
        """None: the model's own."""
        self.dtype = self.other_dtype or own
        self.scaled = self.dtype in IN_BYTES and (context.kv_scaled or self.dtype == "int8")
        """Each vector has a factor of its own: whole numbers of eight bits would lose small vectors
        beside large ones.
        """
        self._num_heads = heads
        self._own = _own_heads(heads, context.group)
        if backend is not None and self.other_dtype and self.other_dtype not in known:
            raise ModelError(
                f"{prefix} caches keys and values as {self.other_dtype}, which the attention "
                f"backend {self._name} does not; "
                "choose another with --attention-backend or --kv-cache-dtype, or a checkpoint "
                "without it."
            )
        self.scales: dict[str, torch.Tensor] = {}
        takes = getattr(backend, "kv_scales", False) and not self.scaled
        for part, name in stored.items():
            if takes:
                self.scales[part] = torch.ones(len(self._own))
            fill_scale = self._filler(
                part, needed=bool(self.other_dtype) and backend is not None and not self.scaled
            )
            for place in (
                f"{prefix}.{part}_scale",
                f"{prefix}.attn.{part}_scale",
                f"{name}.{part}_scale",
            ):
                weights.add_instead(place, None, fill_scale, of=())

    def _filler(self, part: str, *, needed: bool) -> Callable[[torch.Tensor], None]:
        """Return who takes a factor, or one for each head of the model."""

        def take(tensor: torch.Tensor) -> None:
            if part in self.scales:
                fill(self.scales[part], self._of_rank(tensor.flatten()))
            elif needed:
                raise ModelError(
                    f"is a factor of cached {'keys' if part == 'k' else 'values'}, which the "
                    f"attention backend {self._name} "
                    "does not take; choose another with --attention-backend, or a checkpoint "
                    "without such factors."
                )

        return take

    def _of_rank(self, scales: torch.Tensor) -> torch.Tensor:
        if len(scales) not in (1, self._num_heads):
            raise ModelError(
                f"has {len(scales)} factors; one is known, or one for each of {self._num_heads} "
                "key-value heads. Correct the "
                "checkpoint."
            )
        return scales.expand(self._num_heads)[self._own.start : self._own.stop]


def _tell(wished: str | None, own: str, backend: str) -> None:
    log.warning(
        "the checkpoint has keys and values cached as %s, which the attention backend %s does not: "
        "they are cached as %s",
        wished,
        backend,
        own,
    )


def _own_heads(heads: int, group: ParallelGroup) -> range:
    """Return the heads of this rank; with fewer of them than ranks, neighbours have the same."""
    parts = min(heads, group.size)
    first = group.rank * parts // group.size * (heads // parts)
    return range(first, first + heads // parts)
