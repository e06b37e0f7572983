"""Lists of configs name layers as the checkpoint has them, or as transformers 5 has them in memory:
both mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.quant_methods.auto_round.method import AutoRound
from builtin_plugins.quant_methods.awq.method import Awq
from builtin_plugins.quant_methods.bitsandbytes.method import BitsAndBytes
from builtin_plugins.quant_methods.common.names import (
    Listed,
    Reading,
    expressions,
    marked,
    wildcards,
)
from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from builtin_plugins.quant_methods.fp8.method import FbgemmFp8
from builtin_plugins.quant_methods.fp_quant.method import FpQuant
from builtin_plugins.quant_methods.gptq.method import Gptq
from builtin_plugins.quant_methods.hqq.method import Hqq
from builtin_plugins.quant_methods.modelopt.method import ModelOpt
from builtin_plugins.quant_methods.quark.method import Quark
from builtin_plugins.quant_methods.stored.method import StoredMethod
from builtin_plugins.quant_methods.torchao.method import TorchAo
from tests.quant_methods import (
    test_awq,
    test_bitsandbytes,
    test_compressed_tensors,
    test_floats,
    test_fp_quant,
    test_gptq,
    test_hqq,
    test_quark,
    test_torchao,
)
from tests.quant_methods.stored import (
    Tensors,
    Writer,
    assert_alike,
    checkpoint,
    is_linear,
    packed,
    scores,
)

MIXTRAL = "MixtralForCausalLM"
WIDE = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 32}
LEFT_OUT = ("model.layers.0.block_sparse_moe.experts.", "model.layers.1.self_attn.o_proj.")
"""What the lists below leave out, as the file has it."""
OTHERS = ["model.layers.1.self_attn.o_proj", "lm_head"]
EXPERTS = 4
SPELLED: dict[str, list[str]] = {
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
    "beside a tower": [
        "model.language_model.layers.0.mlp.experts",
        "language_model.model.layers.1.self_attn.o_proj",
        "language_model.lm_head",
        "vision_tower",
    ],
}
NAMES_ALONE = ("experts in two tensors",)
"""What no tool has a pattern for."""
Listing = Callable[[Sequence[str]], StoredMethod]


def regex(name: str) -> str:
    return name.replace(".", r"\.")


def plain_bits(names: Sequence[str]) -> dict[str, Any]:
    return {name: {"bits": 16} for name in names}


def compressed(name: str) -> tuple[Writer, dict[str, Any]]:
    layout, facts = test_compressed_tensors.SCHEMES[name]
    return test_compressed_tensors.by_the_library(layout, facts), test_compressed_tensors.config(
        layout, facts
    )


GPTQ = test_gptq.writer()
AWQ = test_awq.writer()
WHOLE = test_floats.CASES["fp8 of tensors"][0]
ROWS = test_floats.CASES["fbgemm_fp8"][0]
BLOCKS = test_floats.CASES["fp8 in blocks"][0]
INTS, INTS_FACTS = compressed("int4 in groups")
QUARK, QUARK_FACTS = test_quark.CASES["fp8 of rows"]
BYTES, BYTES_FACTS = test_bitsandbytes.CASES["int8"]
TURNED, TURNED_FACTS = test_fp_quant.CASES["mxfp4"]
AO, AO_FACTS = test_torchao.CASES["int8 in rows"]
ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 16, "sym": True, "data_type": "int"}
NVIDIA = {"quant_method": "modelopt", "quant_algo": "FP8"}
LISTS: dict[str, tuple[Writer, Listing]] = {
    "auto-round": (GPTQ, lambda names: AutoRound({**ROUND, "extra_config": plain_bits(names)})),
    "awq": (AWQ, lambda names: Awq(test_awq.config(modules_to_not_convert=names))),
    "fp8": (
        BLOCKS,
        lambda names: test_floats.fp8(weight_block_size=[16, 16], modules_to_not_convert=names),
    ),
    "fp8, ignored": (WHOLE, lambda names: test_floats.fp8(ignored_layers=names)),
    "fbgemm_fp8": (
        ROWS,
        lambda names: FbgemmFp8({"quant_method": "fbgemm_fp8", "modules_to_not_convert": names}),
    ),
    "modelopt": (WHOLE, lambda names: ModelOpt({**NVIDIA, "ignore": names})),
    "hqq": (test_hqq.writer(), lambda names: Hqq(test_hqq.config(skip_modules=names))),
    "bitsandbytes": (
        BYTES,
        lambda names: BitsAndBytes({**BYTES_FACTS, "llm_int8_skip_modules": names}),
    ),
    "fp_quant": (TURNED, lambda names: FpQuant({**TURNED_FACTS, "modules_to_not_convert": names})),
    "torchao": (
        AO,
        lambda names: TorchAo(test_torchao.config(AO_FACTS, modules_to_not_convert=names)),
    ),
    "torchao, by name": (
        AO,
        lambda names: TorchAo(
            test_torchao.config(by_name({"_default": AO_FACTS, **dict.fromkeys(names)}))
        ),
    ),
    "compressed-tensors": (INTS, lambda names: CompressedTensors({**INTS_FACTS, "ignore": names})),
    "quark": (QUARK, lambda names: Quark(test_quark.config(QUARK_FACTS, exclude=names))),
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
        lambda names: Gptq(test_gptq.config(dynamic={f"-:^{regex(name)}.*": {} for name in names})),
    ),
    "fp8": (
        BLOCKS,
        lambda names: test_floats.fp8(
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
        lambda names: Quark(test_quark.config(QUARK_FACTS, exclude=[f"{name}*" for name in names])),
    ),
    "torchao": (
        AO,
        lambda names: TorchAo(
            test_torchao.config(
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
    """Return patterns of transformers, in which a dot is any character."""
    return [name.replace(".layers.", ".l.*s.") for name in names]


def by_name(facts: dict[str, Any]) -> dict[str, Any]:
    return {"_type": "FqnToConfig", "_version": 1, "_data": {"fqn_to_config": facts}}


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensors]:
    folder = tmp_path_factory.mktemp("mixtral")
    tensors = checkpoint(MIXTRAL, folder)
    assert any(f".experts.{EXPERTS - 1}." in name for name in tensors)
    assert not any(f".experts.{EXPERTS}." in name for name in tensors)
    return folder, tensors


def outside(name: str) -> bool:
    return is_linear(name) and not name.startswith(LEFT_OUT)


def layers(tensors: Tensors) -> list[str]:
    return [name.removesuffix(".weight") for name in tensors if is_linear(name)]


@pytest.mark.parametrize("spelled", ["as stored", "in memory"])
@pytest.mark.parametrize(
    ("name", "cases"), [*((name, LISTS) for name in LISTS), ("gptq", PATTERNS)]
)
def test_a_model_computes_what_is_stored_and_what_is_left_out(
    name: str, cases: dict[str, tuple[Writer, Listing]], spelled: str, mixtral: tuple[Path, Tensors]
) -> None:
    folder, tensors = mixtral
    write, make = cases[name]
    stored, plain = packed(tensors, write, outside)
    assert_alike(
        scores(MIXTRAL, folder, stored, make(SPELLED[spelled])), scores(MIXTRAL, folder, plain)
    )


@pytest.mark.parametrize("spelled", SPELLED)
@pytest.mark.parametrize("name", LISTS)
def test_a_name_is_found_in_every_spelling(
    name: str, spelled: str, mixtral: tuple[Path, Tensors]
) -> None:
    _, tensors = mixtral
    method = LISTS[name][1](SPELLED[spelled])
    plain = {layer for layer in layers(tensors) if method.format_of(layer) is None}
    assert plain == {layer for layer in layers(tensors) if f"{layer}.".startswith(LEFT_OUT)}
    assert method.head("lm_head") is None


@pytest.mark.parametrize("spelled", [spelled for spelled in SPELLED if spelled not in NAMES_ALONE])
@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_fits_every_spelling(
    name: str, spelled: str, mixtral: tuple[Path, Tensors]
) -> None:
    _, tensors = mixtral
    method = PATTERNS[name][1](SPELLED[spelled])
    plain = {layer for layer in layers(tensors) if method.format_of(layer) is None}
    assert plain == {layer for layer in layers(tensors) if f"{layer}.".startswith(LEFT_OUT)}


SPECIAL = ("experts.2.w2", "layers.0.self_attn.q_proj")
"""Ends of the names of layers that have settings of their own."""
NAMED: dict[str, list[str]] = {
    "as stored": [
        *(f"model.layers.{layer}.block_sparse_moe.experts.2.w2" for layer in range(3)),
        "model.layers.0.self_attn.q_proj",
    ],
    "in memory": [
        *(f"model.layers.{layer}.mlp.experts.2.down_proj" for layer in range(3)),
        "model.layers.0.self_attn.q_proj",
    ],
    "beside a tower": [
        *(f"language_model.model.layers.{layer}.mlp.experts.2.down_proj" for layer in range(3)),
        "model.language_model.layers.0.self_attn.q_proj",
    ],
}
MORE = {"bits": 8, "group_size": 32}
TOGETHER = {"targets": ["Linear"], "weights": test_compressed_tensors.SCHEMES["int4 in groups"][1]}
APART = test_compressed_tensors.SCHEMES["int2 in groups"][1]
OWN_SETTINGS: dict[str, Listing] = {
    "auto-round": lambda names: AutoRound({**ROUND, "extra_config": dict.fromkeys(names, MORE)}),
    "auto-round, patterns": lambda names: AutoRound(
        {**ROUND, "extra_config": {f"{regex(name)}$": MORE for name in names}}
    ),
    "gptq": lambda names: Gptq(
        test_gptq.config(dynamic={f"+:{regex(name)}$": MORE for name in names})
    ),
    "quark": lambda names: Quark(
        test_quark.config(
            QUARK_FACTS,
            layer_quant_config=dict.fromkeys(
                [f"{name}*" for name in names], test_quark.CASES["mxfp4"][1]
            ),
        )
    ),
    "torchao": lambda names: TorchAo(
        test_torchao.config(
            by_name(
                {
                    "_default": AO_FACTS,
                    **dict.fromkeys(names, test_torchao.CASES["int8 in groups"][1]),
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


@pytest.mark.parametrize("spelled", NAMED)
@pytest.mark.parametrize("name", OWN_SETTINGS)
def test_settings_by_name_are_found_in_every_spelling(
    name: str, spelled: str, mixtral: tuple[Path, Tensors]
) -> None:
    _, tensors = mixtral
    method = OWN_SETTINGS[name](NAMED[spelled])
    usual = method.format_of("model.layers.1.self_attn.q_proj")
    assert usual is not None
    for layer in layers(tensors):
        stored = method.format_of(layer)
        assert stored is not None
        assert (stored.grouping == usual.grouping) is not layer.endswith(SPECIAL), layer


@pytest.mark.parametrize("kind", ["block_sparse_moe.experts.w2", "mlp.experts.down_proj"])
def test_hqqs_kinds_of_layers_are_found_in_every_spelling(
    kind: str, mixtral: tuple[Path, Tensors]
) -> None:
    _, tensors = mixtral
    kinds = {kind: test_hqq.settings(8, 32, 1), "self_attn.q_proj": test_hqq.settings(4, 16, 1)}
    method = Hqq(test_hqq.config(quant_config=kinds))
    for layer in layers(tensors):
        stored = method.format_of(layer)
        bits = stored.grouping.bits if stored is not None and stored.grouping is not None else 16
        assert bits == (8 if layer.endswith(".w2") else 4 if layer.endswith(".q_proj") else 16), (
            layer
        )


@pytest.mark.parametrize(
    ("reading", "text", "fitting", "others"),
    [
        (
            marked,
            "model.layers.0.mlp",
            ["model.layers.0.mlp.up_proj"],
            ["model.layers.0.mlp2.up_proj"],
        ),
        (marked, "mlp.up_proj", ["model.layers.0.mlp.up_proj"], ["model.layers.0.mlp.up_proj2"]),
        (marked, "re:.*up", ["model.layers.0.mlp.up_proj"], ["model.layers.0.mlp.down_proj"]),
        (
            marked,
            "layers.0.self_attn.qkv_proj",
            ["model.layers.0.self_attn.k_proj"],
            ["model.layers.0.self_attn.o_proj"],
        ),
        (
            marked,
            "model.layers.0.mlp.gate_up_proj",
            ["model.layers.0.mlp.gate_proj"],
            ["model.layers.0.mlp.down_proj"],
        ),
        (
            marked,
            "self_attn.q_proj.weight",
            ["model.layers.0.self_attn.q_proj"],
            ["model.layers.0.self_attn.k_proj"],
        ),
        (
            marked,
            "backbone.layers.4.mixer.in_proj",
            ["model.layers.4.mixer.in_proj"],
            ["model.layers.4.mixer.out_proj"],
        ),
        (marked, "model.vision_tower.layers.0.mlp.up_proj", [], ["model.layers.0.mlp.up_proj"]),
        (marked, "lm_head", ["lm_head", "embed_out"], ["model.lm_heads"]),
        (marked, "gate", [], ["model.layers.0.mlp.gate_proj"]),
        (
            wildcards,
            "model.layers.1*",
            ["model.layers.1.mlp.up_proj", "model.layers.12.q_proj"],
            ["model.layers.2.q_proj"],
        ),
        (wildcards, "*.mlp.gate", ["model.layers.0.mlp.gate"], ["model.layers.0.mlp.gate_proj"]),
        (
            wildcards,
            "re:.*k_proj",
            ["model.layers.0.self_attn.k_proj"],
            ["model.layers.0.self_attn.q_proj"],
        ),
        (
            wildcards,
            "backbone.layers.?.mixer*",
            ["model.layers.4.mixer.in_proj"],
            ["model.layers.14.mixer.in_proj"],
        ),
        (
            expressions,
            "model.layers.*.self_attn",
            ["model.layers.3.self_attn.q_proj"],
            ["model.layers.3.mlp.up_proj"],
        ),
        (expressions, r"layers\.[0-3]\.", [], ["model.layers.0.mlp.up_proj"]),
        (
            expressions,
            r".*layers\.[0-3]\.mlp",
            ["model.layers.2.mlp.up_proj"],
            ["model.layers.4.mlp.up_proj"],
        ),
        (expressions, "model.*gate", ["model.layers.0.mlp.gate"], ["model.layers.0.mlp.gate_proj"]),
        (
            expressions,
            "*.k_proj",
            ["model.layers.0.self_attn.k_proj"],
            ["model.layers.0.self_attn.q_proj"],
        ),
        (
            marked,
            "re:(?!.*down_proj)",
            ["layers.0.mlp.experts.0.up_proj"],
            ["model.layers.0.block_sparse_moe.experts.0.w2"],
        ),
    ],
)
def test_texts_name_layers_as_their_tools_mean_them(
    reading: Reading, text: str, fitting: list[str], others: list[str]
) -> None:
    listed = Listed([text], reading, anywhere=True)
    assert [name for name in (*fitting, *others) if listed.find(name) == text] == fitting


def test_of_several_texts_the_longest_name_counts_or_the_first() -> None:
    texts = ["model.*", "model.layers.0", "model.layers.0.mlp.up_proj", "*up_proj"]
    listed = Listed(texts, wildcards)
    layer = "model.layers.0.mlp.up_proj"
    assert (listed.find(layer), listed.first(layer)) == ("model.layers.0.mlp.up_proj", "model.*")
    assert listed.find("model.layers.0.mlp.down_proj") == "model.layers.0"
    assert listed.find("model.layers.1.mlp.up_proj") == "model.*"
    assert listed.find("lm_head") is None


@pytest.mark.parametrize(
    ("write", "make"),
    [
        (AWQ, lambda: Awq(test_awq.config(modules_to_not_convert=["mlp", "lm_head"]))),
        (
            BLOCKS,
            lambda: test_floats.fp8(weight_block_size=[16, 16], modules_to_not_convert=["mlp"]),
        ),
        (WHOLE, lambda: ModelOpt({**NVIDIA, "exclude_modules": ["*proj"]})),
    ],
)
def test_what_the_file_has_stored_is_stored_whatever_a_list_says(
    write: Writer, make: Callable[[], StoredMethod], tmp_path: Path
) -> None:
    stored, plain = packed(checkpoint("LlamaForCausalLM", tmp_path), write)
    method = make()
    method.stored_as({name: tensor.dtype for name, tensor in stored.items()})
    assert_alike(
        scores("LlamaForCausalLM", tmp_path, stored, method),
        scores("LlamaForCausalLM", tmp_path, plain),
    )
