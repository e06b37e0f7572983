"""Mistral's own format (params.json, consolidated*.safetensors) equals the Hugging Face layout."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from builtin_plugins.model_sources.huggingface.mistral_format import read_params
from builtin_plugins.weight_loaders.mistral.loader import rename
from core.errors import ModelError
from core.model_spec.mistral_names import ENDS, MATRICES, PARTS
from core.testing.checkpoints import VOCAB, make_checkpoint
from core.testing.one_sequence import Session

DENSE = "MistralForCausalLM"
LARGE = "Mistral4ForCausalLM"
SCALED = {"original_max_position_embeddings": 16, "beta": 0.3}
YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "beta": 32, "alpha": 1}
ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
    "partial_rotary_factor": 8 / 24,
}
BASE: dict[str, Any] = {
    "dim": 64,
    "n_layers": 3,
    "n_heads": 4,
    "hidden_dim": 96,
    "norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
}
PARAMS: dict[str, dict[str, Any]] = {
    DENSE: {**BASE, "n_kv_heads": 2, "head_dim": 16, "sliding_window": 24},
    LARGE: {
        **BASE,
        "n_kv_heads": 4,
        "q_lora_rank": 40,
        "kv_lora_rank": 24,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 20,
        "yarn": YARN,
        "llama_4_scaling": SCALED,
        "vision_encoder": {"image_token_id": 10},
        "moe": {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "num_shared_experts": 1,
            "expert_hidden_dim": 32,
            "first_k_dense_replace": 1,
            "routed_scale": 1.5,
            "num_expert_groups": 1,
            "num_expert_groups_per_tok": 1,
        },
    },
}
FIELDS: dict[str, dict[str, Any]] = {
    DENSE: {},
    LARGE: {
        "attention_bias": False,
        "rope_parameters": ROPE,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.5,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
    },
}


def write_own_format(folder: Path, source: Path, params: dict[str, Any]) -> Path:
    """Write a checkpoint's weights under Mistral's names, in two files."""
    parts = {ours: theirs for theirs, ours in PARTS.items()}
    parts |= {"mlp.shared_experts": "shared_experts", "mlp": "feed_forward"}
    matrices = {ours: theirs for theirs, ours in MATRICES.items()}
    ends = {ours: theirs for theirs, ours in ENDS.items()}
    own = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        stem = name.removesuffix(".weight")
        if stem in ends:
            own[f"{ends[stem]}.weight"] = tensor
            continue
        found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
        assert found is not None
        inner = found[2]
        layer = f"layers.{found[1]}"
        group, _, matrix = inner.rpartition(".")
        if group == "mlp.experts":  # of all experts in one tensor
            halves = tensor.chunk(2, 1) if matrix == "gate_up_proj" else (tensor,)
            written = ("w1", "w3") if matrix == "gate_up_proj" else ("w2",)
            for short, half in zip(written, halves, strict=True):
                own |= {f"{layer}.experts.{i}.{short}.weight": one for i, one in enumerate(half)}
            continue
        if inner in parts:
            heads = {"q_proj": params["n_heads"], "k_proj": params["n_kv_heads"]}.get(matrix)
            if heads is not None:
                rows = tensor.view(heads, 2, -1, tensor.shape[1]).transpose(1, 2)
                tensor = rows.reshape(tensor.shape)
            own[f"{layer}.{parts[inner]}.weight"] = tensor
        else:
            group = parts.get(group, group.removeprefix("mlp."))
            own[f"{layer}.{group}.{matrices[matrix]}.weight"] = tensor
    own["vision_encoder.ln_pre.weight"] = torch.ones(3)
    own = {name: tensor.contiguous() for name, tensor in own.items()}
    names = sorted(own)
    folder.mkdir()
    for index, half in enumerate((names[::2], names[1::2]), start=1):
        file = folder / f"consolidated-0000{index}-of-00002.safetensors"
        save_file({name: own[name] for name in half}, file)
    (folder / "params.json").write_text(json.dumps(params))
    return folder


@pytest.mark.parametrize("architecture", [DENSE, LARGE])
def test_own_format_equals_transformers(
    architecture: str,
    tmp_path: Path,
    by_transformers: Callable[[Path], Any],
    open_model: Callable[..., Any],
) -> None:
    source = make_checkpoint(architecture, tmp_path / "source", seed=4, **FIELDS[architecture])
    ids = list(range(5, 55))
    with torch.inference_mode():
        expected = by_transformers(source)(torch.tensor([ids])).logits[0].log_softmax(-1)
    folder = write_own_format(tmp_path / "own", source, PARAMS[architecture])
    found = Session(open_model(folder)).step(ids)
    assert (found - expected).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"moe": {"num_experts": 8}}, "moe in .*params.json: got experts without kv_lora_rank"),
        ({"moe": 3}, "moe in .*params.json: got 3; expected an object"),
        ({"quantization": {"qformat_weight": "int3"}}, "quantization in .*: got .*int3"),
        (
            {"yarn": YARN, "llama_4_scaling": {**SCALED, "original_max_position_embeddings": 9}},
            "llama_4_scaling in .*: got original_max_position_embeddings=9; expected 16",
        ),
    ],
)
def test_wrong_fields_are_refused_by_name(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "params.json"
    path.write_text(json.dumps({**PARAMS[DENSE], **fields}))
    with pytest.raises(ModelError, match=message):
        read_params(path)


@pytest.mark.parametrize(
    ("scheme", "expected"), [("NO_SCALES", "dynamic"), ("TENSOR", "static"), (None, "static")]
)
def test_fp8_weights_have_their_method(scheme: str | None, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "params.json"
    given = {"qformat_weight": "fp8_e4m3", "qscheme_act": scheme}
    path.write_text(json.dumps({**PARAMS[DENSE], "quantization": given}))
    found = read_params(path)["quantization_config"]
    assert found == {"quant_method": "fp8", "activation_scheme": expected}
    assert rename("layers.0.attention.wo.qscale_weight").endswith("o_proj.weight_scale")
    assert rename("layers.2.experts.11.w2.qscale_act") == (
        "model.layers.2.mlp.experts.11.down_proj.input_scale"
    )


def test_unscaled_yarn_changes_frequencies_only(tmp_path: Path) -> None:
    path = tmp_path / "params.json"
    path.write_text(json.dumps({**PARAMS[DENSE], "yarn": {**YARN, "apply_scale": False}}))
    rope = read_params(path)["rope_parameters"]
    assert rope["attention_factor"] == 1.0
    assert "mscale_all_dim" not in rope


def test_unknown_tensors_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"'layers.0.attention.wz.weight': got an unknown tensor"):
        rename("layers.0.attention.wz.weight")
