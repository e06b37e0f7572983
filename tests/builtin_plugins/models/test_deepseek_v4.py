"""DeepSeek V4: its two forms of config.json, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from core.errors import ConfigError, ModelError
from core.model_spec.kv import IndexKeys, SlidingRows
from core.testing.one_sequence import read_config
from tests.builtin_plugins.models.test_engine_parity import open_engine

V4 = "DeepseekV4ForCausalLM"
PUBLISHED: dict[str, Any] = {
    "architectures": [V4],
    "attention_bias": False,
    "compress_ratios": [0, 0, 4, 128, 4, 128, 0],
    "compress_rope_theta": 160000,
    "hc_eps": 1e-06,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "head_dim": 512,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 512,
    "max_position_embeddings": 1048576,
    "model_type": "deepseek_v4",
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 6,
    "num_hash_layers": 3,
    "num_hidden_layers": 6,
    "num_key_value_heads": 1,
    "num_nextn_predict_layers": 1,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "sliding_window": 128,
    "swiglu_limit": 10.0,
    "tie_word_embeddings": False,
    "vocab_size": 129280,
}
"""Fields as in deepseek-ai/DeepSeek-V4-Flash-Base, with fewer layers."""


def test_published_configs_are_read_as_transformers_reads_them(
    spec_of: Callable[[str, Any], Any],
) -> None:
    given = deepcopy(PUBLISHED)  # transformers completes the rotary fields in place
    given["compress_ratios"] = given["compress_ratios"][:6]
    saved = json.loads(transformers.DeepseekV4Config(**given).to_json_string(use_diff=False))
    found = spec_of(V4, SimpleNamespace(**PUBLISHED))
    assert found == spec_of(V4, SimpleNamespace(**saved))
    assert [layer.attention.rate for layer in found.layers] == [0, 0, 4, 128, 4, 128]
    assert [layer.mlp.num_hashed_tokens > 0 for layer in found.layers] == [True] * 3 + [False] * 3


def test_compressed_keys_have_rows_for_several_tokens(
    checkpoint: Callable[[str], Path], load: Callable[..., Any]
) -> None:
    specs = {layer.name: layer.spec for layer in load(V4, checkpoint(V4)).kv_layers}
    heavily = specs["model.layers.1.compressed"]
    assert isinstance(heavily, IndexKeys)
    assert heavily.page_bytes(32) == 2 * 32 * 4  # two rows of a head, float32
    windows = [spec for spec in specs.values() if isinstance(spec, SlidingRows)]
    assert [spec.window for spec in windows] == [12, 16, 12, 12]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"compress_ratios": [0, 4]}, "compress_ratios in config.json: got"),
        ({"compress_ratios": [0, 0, 4, 64, 4, 128]}, "expected 0, 4 or 128 for each of 6"),
        ({"o_groups": 7}, "o_groups: got 7; expected a divisor of 64"),
        ({"scoring_func": "tanh"}, "scoring_func in config.json: got 'tanh'; expected softmax"),
    ],
)
def test_wrong_fields_are_refused_by_name(
    fields: dict[str, Any], message: str, spec_of: Callable[[str, Any], Any]
) -> None:
    with pytest.raises(ModelError, match=message.replace("[", r"\[")):
        spec_of(V4, SimpleNamespace(**{**PUBLISHED, **fields}))


def test_groups_of_heads_are_split_whole(
    checkpoint: Callable[[str], Path], spec_of: Callable[[str, Any], Any]
) -> None:
    spec = spec_of(V4, read_config(checkpoint(V4)))
    spec.check_split(2, 1)
    with pytest.raises(
        ConfigError, match=r"--tensor-parallel-size 4 does not divide .* \(o_groups\)"
    ):
        spec.check_split(4, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"speculative_token_tree": "[(0,), (1,)]"}, "has a SlidingRows"),
        ({"num_speculative_tokens": 2}, "got layers with a SlidingRows"),
    ],
)
def test_trees_and_use_as_a_draft_model_are_refused(
    settings: dict[str, Any], message: str, checkpoint: Callable[[str], Path]
) -> None:
    folder = checkpoint(V4)
    drafts = {"method": "draft_model", "model": str(folder), **settings}
    with pytest.raises(ConfigError, match=message):
        open_engine(folder, speculative_config=drafts)


def test_drafts_by_its_mtp_layers_are_refused_by_name(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="MTP layers that read several residual"):
        open_engine(checkpoint(V4), speculative_config={"method": "mtp"})
