"""AutoRound checkpoints in each of its packings, with layers that have bits of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.quant_methods.auto_round.method import AutoRound
from core.errors import ModelError
from tests.quant_methods import test_awq, test_gptq
from tests.quant_methods.stored import Writer, assert_alike, checkpoint, is_linear, packed, scores

LLAMA = "LlamaForCausalLM"


def config(packing: str, *, sym: bool = True, **more: Any) -> dict[str, Any]:
    facts = {
        "quant_method": "auto-round",
        "bits": 4,
        "group_size": 16,
        "sym": sym,
        "data_type": "int",
    }
    return {**facts, "packing_format": packing, **more}


@pytest.mark.parametrize(
    ("packing", "write", "sym"),
    [
        ("auto_round", test_gptq.writer(sym=False, less=0), False),
        ("auto_round:auto_gptq", test_gptq.writer(), True),
        ("auto_round:gptq", test_gptq.writer(sym=False), False),
        ("auto_round:auto_awq", test_awq.writer(), False),
    ],
)
def test_a_model_computes_what_its_integers_stand_for(
    packing: str, write: Writer, sym: bool, tmp_path: Path
) -> None:
    stored, plain = packed(checkpoint(LLAMA, tmp_path), write)
    quant = AutoRound(config(packing, sym=sym, block_name_to_quantize="model.layers"))
    assert_alike(scores(LLAMA, tmp_path, stored, quant), scores(LLAMA, tmp_path, plain))


def test_layers_and_the_head_may_have_settings_of_their_own(tmp_path: Path) -> None:
    tensors = checkpoint(LLAMA, tmp_path)
    eight = [
        name for name in tensors if name.endswith(("layers.2.mlp.up_proj.weight", "lm_head.weight"))
    ]
    others = ("layers.0.self_attn.q_proj.weight", "k_proj.weight", *eight)
    four = [name for name in tensors if is_linear(name) and not name.endswith(others)]
    stored, plain = packed(tensors, test_gptq.writer(8, 32), eight.__contains__)
    stored, plain = (
        packed(own, test_gptq.writer(), four.__contains__)[at]
        for at, own in enumerate((stored, plain))
    )
    own = {"bits": 8, "group_size": 32}
    special = {
        "model.layers.0.self_attn.q_proj": {"bits": 16},
        r".*\.k_proj": {"bits": 16},
        "model.layers.2.mlp.up_proj": own,
        "lm_head": own,
    }
    quant = AutoRound(config("auto_round:auto_gptq", extra_config=special))
    assert_alike(scores(LLAMA, tmp_path, stored, quant), scores(LLAMA, tmp_path, plain))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"packing_format": "auto_round:llm_compressor"},
            "packing_format is 'auto_round:llm_compressor'",
        ),
        ({"data_type": "mx_fp"}, "data_type 'mx_fp'; read are"),
        ({"bits": 6}, "6 bits in groups of 16; auto_round has 2, 3, 4, 8 bits"),
        ({"packing_format": "auto_round:auto_awq", "bits": 8}, "auto_round:auto_awq has 4 bits"),
    ],
)
def test_what_is_not_read_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        AutoRound({**config("auto_round"), **change})
