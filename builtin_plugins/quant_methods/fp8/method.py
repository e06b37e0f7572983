"""FP8 checkpoints (`fp8`: per tensor or block; `fbgemm_fp8`: per row), and FP8 on load."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch

from builtin_plugins.quant_methods.common.excluded_modules import ExcludeListMethod
from builtin_plugins.quant_methods.common.floats import FloatsFormat
from builtin_plugins.quant_methods.common.module_names import NameList, read_transformers_name
from builtin_plugins.quant_methods.common.scales import ALL, GroupShape, is_block_shape
from builtin_plugins.quant_methods.stored.activations import ActivationScheme
from builtin_plugins.quant_methods.stored.config_fields import read_names
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.layouts import LayoutSpec, ScaledFloats
from builtin_plugins.quant_methods.stored.method import StoredMethod
from core.api import EngineConfig, ModelError
from core.model_spec.weight_shard import WeightShard
from core.models.layers.weights import refuse_integers

ACTIVATION_TENSORS: Final = "input_scale activation_scale input_scale_ub"
"""Optional tensors with scales of activations."""


def make_fp8(config: Any = None, engine: EngineConfig | None = None) -> StoredMethod:
    """Return the method that reads an FP8 checkpoint, or quantizes a plain one."""
    return Fp8(config, engine) if config else OnlineFp8()


class _Floats(ExcludeListMethod):
    """All linear layers share a format, except those that the config lists."""

    def __init__(self, config: Any = None, engine: EngineConfig | None = None) -> None:
        listed = read_names(config or {}, "ignored_layers", "modules_to_not_convert")
        super().__init__(config, NameList(listed, read_transformers_name, anywhere=True), engine)


class Fp8(_Floats):
    """`weight_block_size` gives the block that shares a scale; by default a whole tensor does."""

    name = "fp8"
    example_config: Final = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }

    def __init__(self, config: Any = None, engine: EngineConfig | None = None) -> None:
        super().__init__(config, engine)
        activations = config.get("activation_scheme", "dynamic")
        if activations not in ("dynamic", "static"):
            raise ModelError(
                f"quantization_config: activation_scheme: got {activations!r:.80}; expected "
                "'dynamic' or 'static'. Restore the original config."
            )
        block = config.get("weight_block_size")
        if block is not None and not is_block_shape(block):
            raise ModelError(
                f"quantization_config: weight_block_size: got {block!r:.80}; expected two sizes, "
                "e.g. [128, 128], or null."
            )
        if block:
            group_shape = GroupShape(*block)
            scale = "weight_scale_inv"
            other = "weight_scale"
        else:
            group_shape = GroupShape(ALL, ALL)
            scale = "weight_scale"
            other = "weight_scale_inv"
        self._format = FloatsFormat(
            group_shape,
            scale=scale,
            other=other,
            optional=ACTIVATION_TENSORS,
            activations=ActivationScheme(
                "fp8_e4m3",
                block[1] if block else -1,
                static="" if block or activations == "dynamic" else "input_scale",
            ),
        )


class FbgemmFp8(_Floats):
    """One scale per row."""

    name = "fbgemm_fp8"
    example_config: Final = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}

    def __init__(self, config: Any = None, engine: EngineConfig | None = None) -> None:
        super().__init__(config, engine)
        bound = config.get("activation_scale_ub")
        if bound is not None and not (isinstance(bound, (int, float)) and bound > 0):
            raise ModelError(
                f"quantization_config: activation_scale_ub: got {bound!r:.80}; expected a number "
                "above 0. Restore the original config."
            )
        scheme = ActivationScheme("fp8_e4m3", max_amax=math.inf if bound is None else bound)
        self._format = FloatsFormat(
            GroupShape(1, ALL), optional=ACTIVATION_TENSORS, activations=scheme
        )


FP8_MAX: Final = 448.0
"""Largest float8_e4m3fn."""


class Fp8RowFormat(StoredFormat):
    """A plain weight. Scales are those of whole rows, so sharded rows are rounded identically."""

    suffixes = ("weight",)
    quantizes_on_load = True
    layout_spec = LayoutSpec(8, -1, is_float=True)

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return the shape of the weight."""
        return shard.shape

    def unpack(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> ScaledFloats:
        """Return this rank's shard, rounded to nearest."""
        (weight,) = tensors.values()
        refuse_integers(weight)
        rows = shard.rows(weight.T if shard.transposed else weight)
        scales = rows.abs().amax(1, keepdim=True).float() / FP8_MAX
        own = shard.columns(rows)
        values = (own.float() / torch.where(scales == 0, 1, scales)).clamp_(-FP8_MAX, FP8_MAX)
        return ScaledFloats(values.to(torch.float8_e4m3fn), scales, own.shape[1])


class OnlineFp8(StoredMethod):
    """Quantizes linear layers and experts on load; embedding and head stay plain."""

    name = "fp8"
    quantizes_on_load = True

    def __init__(self) -> None:
        super().__init__(None)
        self._format = Fp8RowFormat()

    def choose_format(self, prefix: str) -> StoredFormat | None:
        """Return the one format."""
        del prefix
        return self._format


class DeepSpeedFp(OnlineFp8):
    """The same for plain checkpoints configured for DeepSpeed's six- or eight-bit floats.

    Six bits are served as eight, which are closer to the stored weights.
    """

    name = "deepspeedfp"
    example_config: Final = {"quant_method": "deepspeedfp", "bits": 8, "group_size": 512}

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        bits = (config or {}).get("bits", 8)
        if bits not in (6, 8):
            raise ModelError(
                f"quantization_config: bits: got {bits!r:.80}; expected 6 or 8 for DeepSpeed "
                "floats. Restore the original config."
            )
