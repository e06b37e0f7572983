"""The dtype, scales and memory of the layers' KV caches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import torch

from core.contracts.attention import AttentionBackend
from core.contracts.platforms import Platform
from core.errors import ModelError
from core.model_spec.kv import IndexKeys, KVLayout, RecurrentState, SlidingRows, num_spare_blocks
from core.models.dtypes import dtype_name
from core.models.layers.quantization import layer_method
from core.models.layers.state import LayerCache, state_views
from core.models.layers.weights import WeightMap, copy_weight

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.parallel import ParallelGroup


log = logging.getLogger(__name__)

DTYPE_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
)
"""Values of `--kv-cache-dtype` that are aliases of dtypes."""
ONE_BYTE_DTYPES: Final = ("float8_e4m3fn", "float8_e5m2", "int8")


class KVCacheDtype:
    """The dtype and scales of one layer's KV cache.

    The flag comes first, then the layer's spec, then the quantization method of the checkpoint.
    """

    def __init__(
        self,
        dtype: str | None,
        stored: Mapping[str, str],
        heads: int,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        """`stored`: checkpoint prefixes of the "k" and "v" projections; `heads`: the model's KV
        heads.

        Raises `ModelError` for a dtype that the attention backend does not support.
        """
        prefix = stored["k"].rpartition(".")[0]
        own = dtype_name(context.dtype)
        flag = (
            None
            if context.kv_dtype == "auto"
            else DTYPE_ALIASES.get(context.kv_dtype, context.kv_dtype)
        )
        backend = context.attention
        self._name = type(context.attention).__name__
        known = () if backend is None else getattr(backend, "kv_dtypes", ())
        stated: str | None = layer_method(context.quant, "kv_dtype", prefix)
        if backend is not None and stated not in (None, own, *known):
            weights.shared(
                f"caches as {stated}", partial(_warn_unsupported, stated, own, self._name)
            )
            stated = None
        other = flag or dtype or stated
        self.other_dtype = None if other == own else other
        """Cache dtype; None: the model dtype."""
        self.dtype = self.other_dtype or own
        self.scaled = self.dtype in ONE_BYTE_DTYPES and (context.kv_scaled or self.dtype == "int8")
        """Whether each vector has its own scale; int8 needs one to represent small vectors."""
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
        self._expect_scales(stored, prefix, backend, weights)

    def _expect_scales(
        self,
        stored: Mapping[str, str],
        prefix: str,
        backend: AttentionBackend | None,
        weights: WeightMap,
    ) -> None:
        """Expect optional scales of keys and values; 1 by default if the backend uses them."""
        takes = getattr(backend, "kv_scales", False) and not self.scaled
        needed = bool(self.other_dtype) and backend is not None and not self.scaled
        for part, name in stored.items():
            if takes:
                self.scales[part] = torch.ones(len(self._own))
            load_scale = self._scale_loader(part, needed=needed)
            names = [f"{own}.{part}_scale" for own in (prefix, f"{prefix}.attn", name)]
            if len({*stored.values()}) > 1:  # a scale of a projection's own outputs
                names.append(f"{name}.output_scale")
            for scale_name in names:
                weights.add_alternative(scale_name, None, load_scale, of=())

    def _scale_loader(self, part: str, *, needed: bool) -> Callable[[torch.Tensor], None]:
        """Return the loader of one KV scale, or of one scale per KV head."""

        def load(tensor: torch.Tensor) -> None:
            if part in self.scales:
                copy_weight(self.scales[part], self._of_rank(tensor.flatten()))
            elif needed:
                raise ModelError(
                    f"is a factor of cached {'keys' if part == 'k' else 'values'}, which the "
                    f"attention backend {self._name} "
                    "does not take; choose another with --attention-backend, or a checkpoint "
                    "without such factors."
                )

        return load

    def _of_rank(self, scales: torch.Tensor) -> torch.Tensor:
        if len(scales) not in (1, self._num_heads):
            raise ModelError(
                f"expected 1 or {self._num_heads} KV scales, found {len(scales)}. "
                "Correct the checkpoint."
            )
        return scales.expand(self._num_heads)[self._own.start : self._own.stop]


def _warn_unsupported(stated: str | None, own: str, backend: str) -> None:
    log.warning(
        "the checkpoint states a KV cache dtype of %s, which the attention backend %s does not "
        "support: the KV cache uses %s",
        stated,
        backend,
        own,
    )


def _own_heads(heads: int, group: ParallelGroup) -> range:
    """Return this rank's KV heads; with fewer heads than ranks, ranks hold copies."""
    parts = min(heads, group.size)
    first = group.rank * parts // group.size * (heads // parts)
    return range(first, first + heads // parts)


def make_caches(
    layout: KVLayout, backend: AttentionBackend, own: range, platform: Platform
) -> tuple[list[LayerCache], dict[tuple[int, int], torch.Tensor]]:
    """Return the cache of each layer in `own`, and the memory of each pool slot by block.

    Groups of one pool share its slots. Spare blocks follow the pool's blocks.
    """
    memory: dict[tuple[int, int], torch.Tensor] = {}
    caches: dict[int, LayerCache] = {}
    for group in layout.groups:
        pool = layout.pools[group.pool]
        spec = group.spec
        size = group.block_size
        num_blocks = pool.num_blocks + num_spare_blocks(layout.groups, group.pool)
        for slot, layer in enumerate(group.layers):
            if layer in own:
                if (group.pool, slot) not in memory:
                    with torch.inference_mode(
                        False
                    ):  # other threads may write to it outside of inference mode
                        memory[group.pool, slot] = platform.allocate(num_blocks * pool.slot_bytes)
                raw = memory[group.pool, slot][: num_blocks * spec.page_bytes(size)]
                if isinstance(spec, RecurrentState):
                    caches[layer] = state_views(raw, spec, num_blocks)
                else:
                    shape = (
                        (num_blocks, size // getattr(spec, "rate", 1), spec.head_size)
                        if isinstance(spec, (IndexKeys, SlidingRows))
                        else backend.cache_shape(spec, num_blocks, size)
                    )
                    caches[layer] = raw.view(getattr(torch, spec.dtype)).view(shape)
    blocks = {key: raw.view(-1, layout.pools[key[0]].slot_bytes) for key, raw in memory.items()}
    return [caches[layer] for layer in own], blocks
