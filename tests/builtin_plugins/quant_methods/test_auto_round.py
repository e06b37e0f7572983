"""AutoRound checkpoints in each packing format, with per-layer bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.quant_methods.auto_round.method import AutoRound
from core.errors import ModelError
from tests.builtin_plugins.quant_methods.writers import awq as awq_writers
from tests.builtin_plugins.quant_methods.writers import gptq as gptq_writers
from tests.builtin_plugins.quant_methods.writers.auto_round import config
from tests.builtin_plugins.quant_methods.writers.model import (
    CheckModel,
    Writer,
    assert_close,
    is_linear,
    logprobs,
    plain_tensors,
    quantize,
)

LLAMA = "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("packing", "write", "sym"),
    [
        ("auto_round", gptq_writers.writer(sym=False, zero_point_offset=0), False),
        ("auto_round:auto_gptq", gptq_writers.writer(), True),
        ("auto_round:gptq", gptq_writers.writer(sym=False), False),
        ("auto_round:auto_awq", awq_writers.writer(), False),
    ],
)
def test_model_matches_dequantized_weights(
    packing: str, write: Writer, sym: bool, check_model: CheckModel
) -> None:
    settings = config(packing, sym=sym, block_name_to_quantize="model.layers")
    check_model(write, lambda: AutoRound(settings))


def test_extra_config_overrides_layers_and_head(tmp_path: Path) -> None:
    tensors = plain_tensors(LLAMA, tmp_path)
    eight = [
        name for name in tensors if name.endswith(("layers.2.mlp.up_proj.weight", "lm_head.weight"))
    ]
    others = ("layers.0.self_attn.q_proj.weight", "k_proj.weight", *eight)
    four = [name for name in tensors if is_linear(name) and not name.endswith(others)]
    stored, plain = quantize(tensors, gptq_writers.writer(8, 32), eight.__contains__)
    stored, plain = (
        quantize(own, gptq_writers.writer(), four.__contains__)[at]
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
    assert_close(logprobs(LLAMA, tmp_path, stored, quant), logprobs(LLAMA, tmp_path, plain))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"packing_format": "auto_round:llm_compressor"},
            "packing_format: got 'auto_round:llm_compressor'",
        ),
        ({"data_type": "mx_fp"}, "data_type 'mx_fp'; expected"),
        ({"bits": 6}, "got 6 bits with group_size 16; auto_round expects 2, 3, 4, 8 bits"),
        (
            {"packing_format": "auto_round:auto_awq", "bits": 8},
            "auto_round:auto_awq expects 4 bits",
        ),
    ],
)
def test_unsupported_config_is_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        AutoRound({**config("auto_round"), **change})
