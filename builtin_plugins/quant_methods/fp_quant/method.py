"""FP-Quant checkpoints: FP4 with group scales, for inputs rotated by a small Hadamard matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from builtin_plugins.quant_methods.common.excluded_modules import ExcludeListMethod
from builtin_plugins.quant_methods.common.floats import scalar_scale
from builtin_plugins.quant_methods.common.module_names import NameList, read_transformers_name
from builtin_plugins.quant_methods.stored.activations import ActivationScheme
from builtin_plugins.quant_methods.stored.config_fields import read_names
from builtin_plugins.quant_methods.stored.formats import StoredFormat, num_groups
from builtin_plugins.quant_methods.stored.layouts import ScaledFloats
from builtin_plugins.quant_methods.stored.packing import e8m0_to_float, unpack_fp4
from core.api import EngineConfig, ModelError
from core.model_spec.weight_shard import WeightShard
from core.models.dtypes import dtype_name

ROTATED: Final = 32
"""Adjacent inputs rotated together, if the config does not say."""
NOT_READ: Final = ("pseudoquantization", "store_master_weights")
"""Fields of checkpoints with plain numbers, for training and for devices without kernels."""


class FpQuant(ExcludeListMethod):
    """Checkpoints of FP-Quant and transformers."""

    name = "fp_quant"
    example_config: Final = {
        "quant_method": "fp_quant",
        "forward_dtype": "mxfp4",
        "hadamard_group_size": ROTATED,
        "modules_to_not_convert": ["lm_head"],
    }

    def __init__(self, config: Any = None, engine: EngineConfig | None = None) -> None:
        super().__init__(
            config,
            NameList(
                read_names(config or {}, "modules_to_not_convert"),
                read_transformers_name,
                anywhere=True,
            ),
            engine,
        )
        kind = str(config.get("forward_dtype", "nvfp4"))
        size = config.get("hadamard_group_size", ROTATED)
        if kind not in GROUPS or not isinstance(size, int) or size < 1:
            raise ModelError(
                f"quantization_config: got forward_dtype {kind!r:.80}, hadamard_group_size "
                f"{size!r:.80}; expected a dtype of {', '.join(GROUPS)} and a size of 1 or more. "
                "Restore the original config."
            )
        stated = [name for name in NOT_READ if config.get(name)]
        if stated:
            raise ModelError(
                f"quantization_config: {' and '.join(stated)}: got true; expected false, with "
                "weights stored in four bits. Save the model without it."
            )
        self._format = RotatedFormat(kind, size)


GROUPS: Final = {"mxfp4": 32, "nvfp4": 16}
"""Inputs per scale. The scale is an exponent (E8M0) for mxfp4, a float8_e4m3fn for nvfp4."""
ROTATION: Final = "forward_hadamard_matrix"
WHOLE: Final = "weight_global_scale"
ACTIVATION_SCALE: Final = "act_global_scale"


@dataclass(frozen=True, slots=True)
class RotatedFloats:
    """Floats of rotated inputs: x @ weight.T is (x @ rotation) @ floats.T, group by group."""

    floats: ScaledFloats
    rotation: torch.Tensor
    """Float32 [size, size]; `size` adjacent inputs are rotated together."""

    @property
    def shape(self) -> tuple[int, int]:
        """Output rows and input columns."""
        return self.floats.shape

    def slice_rows(self, own: slice) -> RotatedFloats:
        """Return some of the rows."""
        return replace(self, floats=self.floats.slice_rows(own))

    def dequantize(self) -> torch.Tensor:
        """Return the weight of unrotated inputs, in float32."""
        rows, width = self.shape
        return (self.floats.dequantize().view(rows, -1, len(self.rotation)) @ self.rotation.T).view(
            rows, width
        )


class RotatedFormat(StoredFormat):
    """`kind`: a key of `GROUPS`. `size`: adjacent inputs rotated together, then rounded."""

    suffixes = ("qweight", "scales", WHOLE, ROTATION)
    optional_suffixes = (ACTIVATION_SCALE, "backward_hadamard_matrix", "weight", "dqweight")

    def __init__(self, kind: str, size: int) -> None:
        self._kind = kind
        self._group = GROUPS[kind]
        self._size = size
        self.activations = ActivationScheme(
            "fp4",
            self._group,
            scale_kind="e8m0" if kind == "mxfp4" else "e4m3",
            static="" if kind == "mxfp4" else ACTIVATION_SCALE,
            is_reciprocal=True,
            rotation=ROTATION,
        )
        self.bits_per_weight = 4 + 8 / self._group

    def check(self, shard: WeightShard) -> None:
        """Reject rotations and groups that do not divide the inputs, and shards that cut one."""
        together = math.lcm(self._group, self._size)
        shard.columns(torch.empty(1, num_groups(shard, together), device="meta"), per=together)

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return the shape of one of the tensors; the global scale has several valid shapes."""
        return {
            "qweight": (shard.out_features, shard.in_features // 2),
            "scales": (shard.out_features, shard.in_features // self._group),
            ROTATION: (self._size, self._size),
        }.get(suffix)

    def check_optional(self, suffix: str, tensor: torch.Tensor, shard: WeightShard) -> None:
        """Reject plain weights stored with the four-bit ones."""
        if suffix in ("weight", "dqweight") and tensor.numel():
            raise ModelError(
                "has plain weights in addition to four-bit ones; save the model without master "
                "weights."
            )

    def unpack(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> RotatedFloats:
        """Return this rank's shard."""
        codes, scales, rotation = (tensors[name] for name in ("qweight", "scales", ROTATION))
        if (
            codes.dtype.itemsize != 1
            or scales.dtype.itemsize != 1
            or not rotation.is_floating_point()
        ):
            names = ", ".join(dtype_name(tensor.dtype) for tensor in (codes, scales, rotation))
            raise ModelError(
                f"holds {names}; expected bytes of numbers, bytes of scales and a floating-point "
                "rotation."
            )
        values = shard.columns(unpack_fp4(shard.rows(codes).contiguous().view(torch.uint8)))
        scales = shard.columns(shard.rows(scales), per=self._group).contiguous().view(torch.uint8)
        if self._kind == "mxfp4":
            scales = e8m0_to_float(scales)
        else:
            scales = scales.view(torch.float8_e4m3fn).float()
        global_scales = (1 / scalar_scale(WHOLE, tensors[WHOLE])).expand(len(values), 1)
        return RotatedFloats(
            ScaledFloats(values, scales, self._group, global_scales=global_scales), rotation.float()
        )
