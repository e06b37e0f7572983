"""Further forms of architectures with a published layout: experts, other sizes, another head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from core.models.layers.decoder import Decoder
from core.testing.draw import draw_weights
from core.testing.one_sequence import Session, plain_context, read_config
from core.testing.published import references
from core.testing.published.layout import Published, Tensors, unstack_experts
from core.testing.published.llama_like import LLAMA_LIKE

BAICHUAN2_VOCAB = 125_696
LENGTH = 40


def name_experts(tensors: Tensors) -> None:
    """Name the experts one by one, as MiniCPM's are."""
    unstack_experts(tensors, ("w1", "w3", "w2"))


def baichuan2() -> Any:
    model = references.llama_with_alibi(vocab_size=BAICHUAN2_VOCAB)
    model.lm_head.register_forward_hook(lambda head, _, out: out / head.weight.norm(dim=1))
    return model


MINICPM = LLAMA_LIKE["MiniCPMForCausalLM"]
BAICHUAN = LLAMA_LIKE["BaichuanForCausalLM"]
DECI = {k: v for k, v in LLAMA_LIKE["DeciLMForCausalLM"].config.items() if k != "block_configs"}
VARIANTS = {
    "openbmb/MiniCPM-MoE-8x2B": (
        "MiniCPMForCausalLM",
        Published(
            "openbmb/MiniCPM-MoE-8x2B",
            partial(
                references.of_class,
                "GraniteMoeForCausalLM",
                tie_word_embeddings=True,
                num_local_experts=4,
                num_experts_per_tok=2,
                attention_multiplier=0.25,
                embedding_multiplier=3.0,
                residual_multiplier=1.4 / 3**0.5,
                logits_scaling=4.0,
            ),
            {**MINICPM.config, "num_experts": 4, "num_experts_per_tok": 2},
            ((r"block_sparse_moe\.router", "mlp.gate"), (r"block_sparse_moe", "mlp")),
            name_experts,
        ),
    ),
    "Deci/DeciLM-7B": (
        "DeciLMForCausalLM",
        Published(
            "Deci/DeciLM-7B",
            partial(references.llama_of_unequal_layers, [2, 4, 1], [96, 96, 96]),
            {
                **DECI,
                "model_type": "deci",
                "num_hidden_layers": 3,
                "intermediate_size": 96,
                "num_key_value_heads_per_layer": [2, 4, 1],
            },
        ),
    ),
    "baichuan-inc/Baichuan2-13B-Chat": (
        "BaichuanForCausalLM",
        Published(
            "baichuan-inc/Baichuan2-13B-Chat",
            baichuan2,
            {**BAICHUAN.config, "vocab_size": BAICHUAN2_VOCAB},
            BAICHUAN.names,
            BAICHUAN.convert,
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_variant_equals_its_reference(
    name: str, tmp_path: Path, spec_of: Callable[[str, Any], Any]
) -> None:
    architecture, published = VARIANTS[name]
    model = published.make()
    draw_weights(model, 1)
    published.write(architecture, model, tmp_path)
    decoder = Decoder(spec_of(architecture, read_config(tmp_path)), plain_context())
    decoder.load_weights(load_file(tmp_path / "model.safetensors").items())
    ids = list(range(100, 100 + LENGTH))
    with torch.inference_mode():
        expected = model.eval()(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
    torch.testing.assert_close(Session(decoder).step(ids), expected, atol=1e-3, rtol=0)
