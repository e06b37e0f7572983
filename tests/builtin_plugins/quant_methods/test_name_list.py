"""Name lists match names, regular expressions and wildcards as their tools do."""

from __future__ import annotations

import pytest

from builtin_plugins.quant_methods.common.module_names import (
    NameList,
    Reader,
    read_glob,
    read_regex,
    read_transformers_name,
)


@pytest.mark.parametrize(
    ("reading", "text", "fitting", "others"),
    [
        (
            read_regex,
            "model.layers.0.mlp",
            ["model.layers.0.mlp.up_proj"],
            ["model.layers.0.mlp2.up_proj"],
        ),
        (
            read_regex,
            "mlp.up_proj",
            ["model.layers.0.mlp.up_proj"],
            ["model.layers.0.mlp.up_proj2"],
        ),
        (read_regex, "re:.*up", ["model.layers.0.mlp.up_proj"], ["model.layers.0.mlp.down_proj"]),
        (
            read_regex,
            "layers.0.self_attn.qkv_proj",
            ["model.layers.0.self_attn.k_proj"],
            ["model.layers.0.self_attn.o_proj"],
        ),
        (
            read_regex,
            "model.layers.0.mlp.gate_up_proj",
            ["model.layers.0.mlp.gate_proj"],
            ["model.layers.0.mlp.down_proj"],
        ),
        (
            read_regex,
            "self_attn.q_proj.weight",
            ["model.layers.0.self_attn.q_proj"],
            ["model.layers.0.self_attn.k_proj"],
        ),
        (
            read_regex,
            "backbone.layers.4.mixer.in_proj",
            ["model.layers.4.mixer.in_proj"],
            ["model.layers.4.mixer.out_proj"],
        ),
        (read_regex, "model.vision_tower.layers.0.mlp.up_proj", [], ["model.layers.0.mlp.up_proj"]),
        (read_regex, "lm_head", ["lm_head", "embed_out"], ["model.lm_heads"]),
        (read_regex, "gate", [], ["model.layers.0.mlp.gate_proj"]),
        (
            read_glob,
            "model.layers.1*",
            ["model.layers.1.mlp.up_proj", "model.layers.12.q_proj"],
            ["model.layers.2.q_proj"],
        ),
        (read_glob, "*.mlp.gate", ["model.layers.0.mlp.gate"], ["model.layers.0.mlp.gate_proj"]),
        (
            read_glob,
            "re:.*k_proj",
            ["model.layers.0.self_attn.k_proj"],
            ["model.layers.0.self_attn.q_proj"],
        ),
        (
            read_glob,
            "backbone.layers.?.mixer*",
            ["model.layers.4.mixer.in_proj"],
            ["model.layers.14.mixer.in_proj"],
        ),
        (
            read_transformers_name,
            "model.layers.*.self_attn",
            ["model.layers.3.self_attn.q_proj"],
            ["model.layers.3.mlp.up_proj"],
        ),
        (read_transformers_name, r"layers\.[0-3]\.", [], ["model.layers.0.mlp.up_proj"]),
        (
            read_transformers_name,
            r".*layers\.[0-3]\.mlp",
            ["model.layers.2.mlp.up_proj"],
            ["model.layers.4.mlp.up_proj"],
        ),
        (
            read_transformers_name,
            "model.*gate",
            ["model.layers.0.mlp.gate"],
            ["model.layers.0.mlp.gate_proj"],
        ),
        (
            read_transformers_name,
            "*.k_proj",
            ["model.layers.0.self_attn.k_proj"],
            ["model.layers.0.self_attn.q_proj"],
        ),
        (
            read_regex,
            "re:(?!.*down_proj)",
            ["layers.0.mlp.experts.0.up_proj"],
            ["model.layers.0.block_sparse_moe.experts.0.w2"],
        ),
    ],
)
def test_readers_match_as_their_tools_do(
    reading: Reader, text: str, fitting: list[str], others: list[str]
) -> None:
    listed = NameList([text], reading, anywhere=True)
    assert [name for name in (*fitting, *others) if listed.find(name) == text] == fitting


def test_longest_name_precedes_first_pattern() -> None:
    texts = ["model.*", "model.layers.0", "model.layers.0.mlp.up_proj", "*up_proj"]
    listed = NameList(texts, read_glob)
    layer = "model.layers.0.mlp.up_proj"
    assert (listed.find(layer), listed.find_first(layer)) == (
        "model.layers.0.mlp.up_proj",
        "model.*",
    )
    assert listed.find("model.layers.0.mlp.down_proj") == "model.layers.0"
    assert listed.find("model.layers.1.mlp.up_proj") == "model.*"
    assert listed.find("lm_head") is None
