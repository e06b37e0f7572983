"""Config lists name layers as the checkpoint or as transformers 5 in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.quant_methods.auto_round.method import AutoRound
from builtin_plugins.quant_methods.awq.method import Awq
from builtin_plugins.quant_methods.bitsandbytes.method import BitsAndBytes
from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from builtin_plugins.quant_methods.fp8.method import FbgemmFp8
from builtin_plugins.quant_methods.fp_quant.method import FpQuant
from builtin_plugins.quant_methods.gptq.method import Gptq
from builtin_plugins.quant_methods.hqq.method import Hqq
from builtin_plugins.quant_methods.modelopt.method import ModelOpt
from builtin_plugins.quant_methods.quark.method import Quark
from builtin_plugins.quant_methods.stored.method import StoredMethod
from builtin_plugins.quant_methods.torchao.method import TorchAo
from tests.builtin_plugins.quant_methods.writers import awq as awq_writers
from tests.builtin_plugins.quant_methods.writers import bitsandbytes as bitsandbytes_writers
from tests.builtin_plugins.quant_methods.writers import (
    compressed_tensors as compressed_tensors_writers,
)
from tests.builtin_plugins.quant_methods.writers import float_formats as float_formats_writers
from tests.builtin_plugins.quant_methods.writers import fp_quant as fp_quant_writers
from tests.builtin_plugins.quant_methods.writers import gptq as gptq_writers
from tests.builtin_plugins.quant_methods.writers import hqq as hqq_writers
from tests.builtin_plugins.quant_methods.writers import quark as quark_writers
from tests.builtin_plugins.quant_methods.writers import torchao as torchao_writers
from tests.builtin_plugins.quant_methods.writers.model import (
    Tensors,
    Writer,
    assert_close,
    is_linear,
    logprobs,
    plain_tensors,
    quantize,
)

MIXTRAL = "MixtralForCausalLM"
EXCLUDED = ("model.layers.0.block_sparse_moe.experts.", "model.layers.1.self_attn.o_proj.")
"""Layers that the lists below exclude, by checkpoint name."""
OTHERS = ["model.layers.1.self_attn.o_proj", "lm_head"]
EXPERTS = 4
NAME_LISTS: dict[str, list[str]] = {
    "as stored": [
        *(
            f"model.layers.0.block_sparse_moe.experts.{one}.{own}"
            for one in range(EXPERTS)
            for own in ("w1", "w2", "w3")
        ),
        *OTHERS,
    ],
    "in memory": [
        *(
            f"model.layers.0.mlp.experts.{one}.{own}_proj"
            for one in range(EXPERTS)
            for own in ("gate", "down", "up")
        ),
        *OTHERS,
    ],
    "experts as a module": ["model.layers.0.mlp.experts", *OTHERS],
    "experts in two tensors": [
        "model.layers.0.mlp.experts.gate_up_proj",
        "model.layers.0.mlp.experts.down_proj",
        *OTHERS,
    ],
    "multimodal": [
        "model.language_model.layers.0.mlp.experts",
        "language_model.model.layers.1.self_attn.o_proj",
        "language_model.lm_head",
        "vision_tower",
    ],
}
NAMES_ALONE = ("experts in two tensors",)
"""Lists for which no tool has a pattern."""
Listing = Callable[[Sequence[str]], StoredMethod]


def regex(name: str) -> str:
    return name.replace(".", r"\.")


def plain_bits(names: Sequence[str]) -> dict[str, Any]:
    return {name: {"bits": 16} for name in names}


def compressed(name: str) -> tuple[Writer, dict[str, Any]]:
    layout, facts = compressed_tensors_writers.SCHEMES[name]
    return compressed_tensors_writers.library_writer(
        layout, facts
    ), compressed_tensors_writers.config(layout, facts)


GPTQ = gptq_writers.writer()
AWQ = awq_writers.writer()
WHOLE = float_formats_writers.CASES["fp8 of tensors"][0]
ROWS = float_formats_writers.CASES["fbgemm_fp8"][0]
BLOCKS = float_formats_writers.CASES["fp8 in blocks"][0]
INTS, INTS_FACTS = compressed("int4 in groups")
QUARK, QUARK_FACTS = quark_writers.CASES["fp8 of rows"]
BYTES, BYTES_FACTS = bitsandbytes_writers.CASES["int8"]
ROTATED, ROTATED_FACTS = fp_quant_writers.CASES["mxfp4"]
AO, AO_FACTS = torchao_writers.CASES["int8 in rows"]
ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 16, "sym": True, "data_type": "int"}
NVIDIA = {"quant_method": "modelopt", "quant_algo": "FP8"}
LISTS: dict[str, tuple[Writer, Listing]] = {
    "auto-round": (GPTQ, lambda names: AutoRound({**ROUND, "extra_config": plain_bits(names)})),
    "awq": (AWQ, lambda names: Awq(awq_writers.config(modules_to_not_convert=names))),
    "fp8": (
        BLOCKS,
        lambda names: float_formats_writers.fp8(
            weight_block_size=[16, 16], modules_to_not_convert=names
        ),
    ),
    "fp8, ignored": (WHOLE, lambda names: float_formats_writers.fp8(ignored_layers=names)),
    "fbgemm_fp8": (
        ROWS,
        lambda names: FbgemmFp8({"quant_method": "fbgemm_fp8", "modules_to_not_convert": names}),
    ),
    "modelopt": (WHOLE, lambda names: ModelOpt({**NVIDIA, "ignore": names})),
    "hqq": (hqq_writers.writer(), lambda names: Hqq(hqq_writers.config(skip_modules=names))),
    "bitsandbytes": (
        BYTES,
        lambda names: BitsAndBytes({**BYTES_FACTS, "llm_int8_skip_modules": names}),
    ),
    "fp_quant": (
        ROTATED,
        lambda names: FpQuant({**ROTATED_FACTS, "modules_to_not_convert": names}),
    ),
    "torchao": (
        AO,
        lambda names: TorchAo(torchao_writers.config(AO_FACTS, modules_to_not_convert=names)),
    ),
    "torchao, by name": (
        AO,
        lambda names: TorchAo(
            torchao_writers.config(by_name({"_default": AO_FACTS, **dict.fromkeys(names)}))
        ),
    ),
    "compressed-tensors": (INTS, lambda names: CompressedTensors({**INTS_FACTS, "ignore": names})),
    "quark": (QUARK, lambda names: Quark(quark_writers.config(QUARK_FACTS, exclude=names))),
}
PATTERNS: dict[str, tuple[Writer, Listing]] = {
    "auto-round": (
        GPTQ,
        lambda names: AutoRound(
            {**ROUND, "extra_config": plain_bits([f".*{regex(name)}.*" for name in names])}
        ),
    ),
    "gptq": (
        GPTQ,
        lambda names: Gptq(
            gptq_writers.config(dynamic={f"-:^{regex(name)}.*": {} for name in names})
        ),
    ),
    "fp8": (
        BLOCKS,
        lambda names: float_formats_writers.fp8(
            weight_block_size=[16, 16], modules_to_not_convert=wild(names)
        ),
    ),
    "bitsandbytes": (
        BYTES,
        lambda names: BitsAndBytes({**BYTES_FACTS, "llm_int8_skip_modules": wild(names)}),
    ),
    "modelopt": (
        WHOLE,
        lambda names: ModelOpt({**NVIDIA, "exclude_modules": [f"{name}*" for name in names]}),
    ),
    "quark": (
        QUARK,
        lambda names: Quark(
            quark_writers.config(QUARK_FACTS, exclude=[f"{name}*" for name in names])
        ),
    ),
    "torchao": (
        AO,
        lambda names: TorchAo(
            torchao_writers.config(
                by_name({"_default": AO_FACTS, **{f"re:{regex(name)}.*": None for name in names}})
            )
        ),
    ),
    "compressed-tensors": (
        INTS,
        lambda names: CompressedTensors(
            {**INTS_FACTS, "ignore": [f"re:{regex(name)}.*" for name in names]}
        ),
    ),
}


def wild(names: Sequence[str]) -> list[str]:
    """Return transformers patterns, in which a dot is any character."""
    return [name.replace(".layers.", ".l.*s.") for name in names]


def by_name(facts: dict[str, Any]) -> dict[str, Any]:
    return {"_type": "FqnToConfig", "_version": 1, "_data": {"fqn_to_config": facts}}


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensors]:
    folder = tmp_path_factory.mktemp("mixtral")
    tensors = plain_tensors(MIXTRAL, folder)
    assert any(f".experts.{EXPERTS - 1}." in name for name in tensors)
    assert not any(f".experts.{EXPERTS}." in name for name in tensors)
    return folder, tensors


def outside(name: str) -> bool:
    return is_linear(name) and not name.startswith(EXCLUDED)


def layers(tensors: Tensors) -> list[str]:
    return [name.removesuffix(".weight") for name in tensors if is_linear(name)]


@pytest.mark.parametrize("variant", ["as stored", "in memory"])
@pytest.mark.parametrize(
    ("name", "cases"), [*((name, LISTS) for name in LISTS), ("gptq", PATTERNS)]
)
def test_model_with_excluded_modules_matches_dequantized_weights(
    name: str, cases: dict[str, tuple[Writer, Listing]], variant: str, mixtral: tuple[Path, Tensors]
) -> None:
    folder, tensors = mixtral
    write, make = cases[name]
    stored, plain = quantize(tensors, write, outside)
    assert_close(
        logprobs(MIXTRAL, folder, stored, make(NAME_LISTS[variant])),
        logprobs(MIXTRAL, folder, plain),
    )


@pytest.mark.parametrize("variant", NAME_LISTS)
@pytest.mark.parametrize("name", LISTS)
def test_excluded_names_match_all_name_variants(
    name: str, variant: str, mixtral: tuple[Path, Tensors]
) -> None:
    _, tensors = mixtral
    method = LISTS[name][1](NAME_LISTS[variant])
    plain = {layer for layer in layers(tensors) if method.format_of(layer) is None}
    assert plain == {layer for layer in layers(tensors) if f"{layer}.".startswith(EXCLUDED)}
    assert method.head("lm_head") is None


@pytest.mark.parametrize(
    "variant", [variant for variant in NAME_LISTS if variant not in NAMES_ALONE]
)
@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_match_all_name_variants(
    name: str, variant: str, mixtral: tuple[Path, Tensors]
) -> None:
    _, tensors = mixtral
    method = PATTERNS[name][1](NAME_LISTS[variant])
    plain = {layer for layer in layers(tensors) if method.format_of(layer) is None}
    assert plain == {layer for layer in layers(tensors) if f"{layer}.".startswith(EXCLUDED)}


SPECIAL = ("experts.2.w2", "layers.0.self_attn.q_proj")
"""Suffixes of layers with settings of their own."""
NAMED: dict[str, list[str]] = {
    "as stored": [
        *(f"model.layers.{layer}.block_sparse_moe.experts.2.w2" for layer in range(3)),
        "model.layers.0.self_attn.q_proj",
    ],
    "in memory": [
        *(f"model.layers.{layer}.mlp.experts.2.down_proj" for layer in range(3)),
        "model.layers.0.self_attn.q_proj",
    ],
    "multimodal": [
        *(f"language_model.model.layers.{layer}.mlp.experts.2.down_proj" for layer in range(3)),
        "model.language_model.layers.0.self_attn.q_proj",
    ],
}
MORE = {"bits": 8, "group_size": 32}
TOGETHER = {
    "targets": ["Linear"],
    "weights": compressed_tensors_writers.SCHEMES["int4 in groups"][1],
}
APART = compressed_tensors_writers.SCHEMES["int2 in groups"][1]
OWN_SETTINGS: dict[str, Listing] = {
    "auto-round": lambda names: AutoRound({**ROUND, "extra_config": dict.fromkeys(names, MORE)}),
    "auto-round, patterns": lambda names: AutoRound(
        {**ROUND, "extra_config": {f"{regex(name)}$": MORE for name in names}}
    ),
    "gptq": lambda names: Gptq(
        gptq_writers.config(dynamic={f"+:{regex(name)}$": MORE for name in names})
    ),
    "quark": lambda names: Quark(
        quark_writers.config(
            QUARK_FACTS,
            layer_quant_config=dict.fromkeys(
                [f"{name}*" for name in names], quark_writers.CASES["mxfp4"][1]
            ),
        )
    ),
    "torchao": lambda names: TorchAo(
        torchao_writers.config(
            by_name(
                {
                    "_default": AO_FACTS,
                    **dict.fromkeys(names, torchao_writers.CASES["int8 in groups"][1]),
                }
            )
        )
    ),
    "modelopt": lambda names: ModelOpt(
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                **{name: {"quant_algo": "NVFP4"} for name in names},
                "model.layers.*": {"quant_algo": "FP8"},
                "model.language_model.layers.*": {"quant_algo": "FP8"},
            },
        }
    ),
    "compressed-tensors": lambda names: CompressedTensors(
        {
            **INTS_FACTS,
            "config_groups": {"group_0": TOGETHER, "group_1": {"targets": names, "weights": APART}},
        }
    ),
}


@pytest.mark.parametrize("variant", NAMED)
@pytest.mark.parametrize("name", OWN_SETTINGS)
def test_per_layer_settings_match_all_name_variants(
    name: str, variant: str, mixtral: tuple[Path, Tensors]
) -> None:
    _, tensors = mixtral
    method = OWN_SETTINGS[name](NAMED[variant])
    usual = method.format_of("model.layers.1.self_attn.q_proj")
    assert usual is not None
    for layer in layers(tensors):
        stored = method.format_of(layer)
        assert stored is not None
        assert (stored.layout_spec == usual.layout_spec) is not layer.endswith(SPECIAL), layer


@pytest.mark.parametrize("kind", ["block_sparse_moe.experts.w2", "mlp.experts.down_proj"])
def test_hqq_layer_types_match_all_name_variants(kind: str, mixtral: tuple[Path, Tensors]) -> None:
    _, tensors = mixtral
    kinds = {
        kind: hqq_writers.settings(8, 32, 1),
        "self_attn.q_proj": hqq_writers.settings(4, 16, 1),
    }
    method = Hqq(hqq_writers.config(quant_config=kinds))
    for layer in layers(tensors):
        stored = method.format_of(layer)
        bits = (
            stored.layout_spec.bits if stored is not None and stored.layout_spec is not None else 16
        )
        assert bits == (8 if layer.endswith(".w2") else 4 if layer.endswith(".q_proj") else 16), (
            layer
        )


@pytest.mark.parametrize(
    ("write", "make"),
    [
        (AWQ, lambda: Awq(awq_writers.config(modules_to_not_convert=["mlp", "lm_head"]))),
        (
            BLOCKS,
            lambda: float_formats_writers.fp8(
                weight_block_size=[16, 16], modules_to_not_convert=["mlp"]
            ),
        ),
        (WHOLE, lambda: ModelOpt({**NVIDIA, "exclude_modules": ["*proj"]})),
    ],
)
def test_quantized_tensors_override_exclude_list(
    write: Writer, make: Callable[[], StoredMethod], tmp_path: Path
) -> None:
    stored, plain = quantize(plain_tensors("LlamaForCausalLM", tmp_path), write)
    method = make()
    method.set_checkpoint_dtypes({name: tensor.dtype for name, tensor in stored.items()})
    assert_close(
        logprobs("LlamaForCausalLM", tmp_path, stored, method),
        logprobs("LlamaForCausalLM", tmp_path, plain),
    )
