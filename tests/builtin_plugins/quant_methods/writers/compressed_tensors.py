"""Writer of compressed-tensors checkpoints for tests, by the library."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.builtin_plugins.quant_methods.writers.model import (
    Tensors,
    Writer,
)

EXPONENTS = {"scale_dtype": "torch.uint8"}


INT_GROUPS: dict[str, Any] = {"type": "int", "strategy": "group", "group_size": 16}


def weights(bits: int = 4, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "symmetric": True, "dynamic": False, **more}


SCHEMES: dict[str, tuple[str, dict[str, Any]]] = {
    "int4 in groups": ("pack-quantized", weights(**INT_GROUPS)),
    "int4 in groups with zeros": ("pack-quantized", weights(**{**INT_GROUPS, "symmetric": False})),
    "int3 in groups with zeros": (
        "pack-quantized",
        weights(3, **{**INT_GROUPS, "symmetric": False}),
    ),
    "int8 in rows, packed": ("pack-quantized", weights(8, type="int", strategy="channel")),
    "int2 in groups": ("pack-quantized", weights(2, **INT_GROUPS)),
    "int8 in rows": ("int-quantized", weights(8, type="int", strategy="channel")),
    "int8 in rows with zeros": (
        "int-quantized",
        weights(8, type="int", strategy="channel", symmetric=False),
    ),
    "int8 of tensors": ("naive-quantized", weights(8, type="int", strategy="tensor")),
    "int4 in bytes": ("int-quantized", weights(4, **INT_GROUPS)),
    "fp8 of tensors": ("float-quantized", weights(8, type="float", strategy="tensor")),
    "fp8 in rows": ("float-quantized", weights(8, type="float", strategy="channel")),
    "fp8 in blocks": (
        "float-quantized",
        weights(8, type="float", strategy="block", block_structure=[16, 16]),
    ),
    "nvfp4": (
        "nvfp4-pack-quantized",
        weights(
            4,
            type="float",
            strategy="tensor_group",
            group_size=16,
            scale_dtype="torch.float8_e4m3fn",
        ),
    ),
    "mxfp4": (
        "mxfp4-pack-quantized",
        weights(4, type="float", strategy="group", group_size=32, **EXPONENTS),
    ),
    "mxfp6": (
        "mxfp6-pack-quantized",
        weights(6, type="float", strategy="group", group_size=32, **EXPONENTS),
    ),
    "mxfp8": (
        "mxfp8-quantized",
        weights(8, type="float", strategy="group", group_size=32, **EXPONENTS),
    ),
}


def config(layout: str, facts: dict[str, Any], **more: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": facts}}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": groups,
        "ignore": ["lm_head"],
        **more,
    }


def library_writer(layout: str, facts: dict[str, Any]) -> Writer:
    """Scales, rounding, packing and dequantization by the library."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.base import (
        BaseCompressor,
    )
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationScheme,
    )
    from compressed_tensors.quantization.utils import (
        calculate_qparams,
        generate_gparam,
    )

    args = QuantizationArgs(**facts)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=layout)
    compressor = BaseCompressor.get_value_from_registry(layout)

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        state = {"weight": weight}
        if facts["strategy"] == "tensor":
            low = weight.amin().view(1)
            high = weight.amax().view(1)
        elif facts["strategy"] == "channel":
            low = weight.amin(1, keepdim=True)
            high = weight.amax(1, keepdim=True)
        elif facts["strategy"] == "block":
            rows, columns = facts["block_structure"]
            filled = torch.nn.functional.pad(
                weight, (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows)
            )
            blocks = filled.unfold(0, rows, rows).unfold(1, columns, columns)
            low = blocks.amin((2, 3))
            high = blocks.amax((2, 3))
        else:
            groups = weight.view(len(weight), -1, facts["group_size"])
            low = groups.amin(2)
            high = groups.amax(2)
        whole = None
        if facts["strategy"] == "tensor_group":
            whole = state["weight_global_scale"] = generate_gparam(weight.amin(), weight.amax())
        state["weight_scale"], zeros = calculate_qparams(low, high, args, global_scale=whole)
        if not facts["symmetric"]:
            state["weight_zero_point"] = zeros
        stored = compressor.compress(state, scheme)
        plain = compressor.decompress(stored, scheme)["weight"].float()
        if whole is not None:  # which it rounds to bfloat16
            from compressed_tensors.compressors.nvfp4.helpers import (
                unpack_fp4_from_uint8,
            )

            values = unpack_fp4_from_uint8(
                stored["weight_packed"], *weight.shape, dtype=torch.float32
            )
            plain = values * (stored["weight_scale"].float() / whole).repeat_interleave(16, 1)
        return dict(stored), plain

    return write
