"""In what numbers a layer's keys and values are cached, and by which factors. Knows no format of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from core.errors import ModelError
from core.nn.kept import method_of
from core.nn.weights import WeightMap, fill

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.spec.names import WeightNames


class CachedAs:
    """What one layer's cache holds, by its spec, by the quantization method, and by the scales of the checkpoint."""

    def __init__(
        self, dtype: str | None, names: WeightNames, layer: str, context: BuildContext, weights: WeightMap
    ) -> None:
        parts = {"k": names.qkv or names.k, "v": names.qkv or names.v}
        prefix = f"{layer}.{parts['k'].rpartition('.')[0]}"
        self.other_dtype = dtype or method_of(context.quant, "kv_dtype", prefix)
        """None: the model's own."""
        self.dtype = self.other_dtype or str(context.dtype).removeprefix("torch.")
        backend, self._name = context.attention, type(context.attention).__name__
        if backend is not None and self.other_dtype and self.other_dtype not in getattr(backend, "kv_dtypes", ()):
            raise ModelError(
                f"{prefix} caches keys and values as {self.other_dtype}, which the attention backend {self._name} does not; "
                "choose another with --attention-backend, or a checkpoint without it."
            )
        self.scales: dict[str, torch.Tensor] = {}
        takes = getattr(backend, "kv_scales", False)
        for part, stored in parts.items():
            if takes:
                self.scales[part] = torch.ones(1)
            fill_scale = self._filler(part, is_plan=backend is None)
            for name in (f"{prefix}.{part}_scale", f"{prefix}.attn.{part}_scale", f"{layer}.{stored}.{part}_scale"):
                weights.add_instead(name, None, fill_scale, of=())

    def _filler(self, part: str, *, is_plan: bool) -> Callable[[torch.Tensor], None]:
        """Return who takes a factor: of keys and values that are cached as they are, nobody needs one."""

        def take(tensor: torch.Tensor) -> None:
            if part in self.scales:
                fill(self.scales[part], tensor.reshape(1))
            elif self.other_dtype and not is_plan:
                raise ModelError(
                    f"is a factor of cached {'keys' if part == 'k' else 'values'}, which the attention backend {self._name} "
                    "does not take; choose another with --attention-backend, or a checkpoint without such factors."
                )

        return take
