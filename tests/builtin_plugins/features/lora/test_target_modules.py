"""Targets other than linear layers: embedding, head, biases, and experts in PEFT's layouts."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from core import LLM, LoRARequest
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.features.lora.adapter_writer import make_adapter, merge
from tests.builtin_plugins.features.lora.outputs import LORA, run

ROOT = "base_model.model."


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def change(folder: Path, added: dict[str, torch.Tensor], **config: Any) -> None:
    """Add tensors to an adapter, and set fields of its config."""
    path = folder / "adapter_model.safetensors"
    save_file(load_file(path) | {ROOT + name: tensor for name, tensor in added.items()}, path)
    stated = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(stated | config))


def change_model(folder: Path, changed: dict[str, torch.Tensor]) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | changed, path, metadata={"format": "pt"})


def check(model: Path, adapter: Path, merged: Path, **options: Any) -> None:
    """Assert that tokens equal those of the merged checkpoint, and without adapter the base's."""
    request = LoRARequest("changed", 1, str(adapter))
    expected = run(model, [None]) + run(merged, [None])
    assert expected[0] != expected[1]
    assert run(model, [None, request], **LORA | options) == expected


RANKS = pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])


@RANKS
def test_embedding_head_biases_and_rank_patterns(ranks: int, tmp_path: Path) -> None:
    model = make_checkpoint("LlamaForCausalLM", tmp_path / "model", seed=3)
    config: dict[str, Any] = {
        "rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 16},
        "alpha_pattern": {"v_proj": 3},
        "use_rslora": True,
    }
    only = r"layers.*(q_proj|v_proj|o_proj|up_proj)"
    adapter = make_adapter(model, tmp_path / "adapter", 4, only=only, size=0.3, **config)
    merged = merge(model, adapter, tmp_path / "merged")
    tensors = load_file(model / "model.safetensors")
    vocab, hidden = tensors["model.embed_tokens.weight"].shape
    a = random(4, vocab)
    b = random(hidden, 4, seed=2)
    head = tensors["lm_head.weight"] + random(vocab, hidden, seed=3) * 0.05
    biases = {
        name: tensor + 0.3 * random(*tensor.shape, seed=4)
        for name, tensor in tensors.items()
        if "proj.bias" in name
    }
    change(
        adapter,
        {
            "model.embed_tokens.lora_embedding_A": a,
            "model.embed_tokens.lora_embedding_B": b,
            "lm_head.weight": head,
            **biases,
        },
        bias="all",
        modules_to_save=["lm_head"],
    )
    embedding = tensors["model.embed_tokens.weight"] + (b @ a).T * 8 / 4**0.5
    change_model(merged, {"model.embed_tokens.weight": embedding, "lm_head.weight": head, **biases})
    check(model, adapter, merged, tensor_parallel_size=ranks)


@RANKS
def test_replaced_embedding_applies_to_tied_head(ranks: int, tmp_path: Path) -> None:
    model = make_checkpoint("Qwen3ForCausalLM", tmp_path / "model", seed=3)
    adapter = make_adapter(model, tmp_path / "adapter", 4, only="q_proj")
    merged = merge(model, adapter, tmp_path / "merged")
    weight = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    weight = weight + 0.1 * random(*weight.shape)
    change(adapter, {"model.embed_tokens.modules_to_save.weight": weight}, ensure_weight_tying=True)
    change_model(merged, {"model.embed_tokens.weight": weight})
    check(model, adapter, merged, tensor_parallel_size=ranks)


def test_stacked_experts_of_peft_target_parameters(tmp_path: Path) -> None:
    model = make_checkpoint("Qwen3MoeForCausalLM", tmp_path / "model", seed=3)
    adapter = make_adapter(model, tmp_path / "adapter", 4, only="layers.1.self_attn.q_proj")
    merged = merge(model, adapter, tmp_path / "merged")
    tensors = load_file(model / "model.safetensors")
    rank = 4
    count = 8
    layer = next(
        re.match(r"(.*experts)\.0\.gate_proj", name)[1]
        for name in tensors
        if "experts.0.gate_proj" in name
    )  # type: ignore[index]
    width, hidden = tensors[f"{layer}.0.gate_proj.weight"].shape
    added: dict[str, torch.Tensor] = {}
    changed: dict[str, torch.Tensor] = {}
    for name, inner, out, seed in (("", width, hidden, 5), (".base_layer", hidden, 2 * width, 6)):
        a = random(count * rank, inner, seed=seed) / inner**0.5
        b = random(out, rank * count, seed=seed + 10) * 0.5
        added |= {f"{layer}{name}.lora_A.weight": a, f"{layer}{name}.lora_B.weight": b}
        for expert in range(count):
            delta = 2 * b.view(out, rank, count)[:, :, expert] @ a.view(count, rank, inner)[expert]
            parts = (
                {"down_proj": delta}
                if not name
                else {"gate_proj": delta[:width], "up_proj": delta[width:]}
            )
            changed |= {
                f"{layer}.{expert}.{k}.weight": tensors[f"{layer}.{expert}.{k}.weight"] + d
                for k, d in parts.items()
            }
    change(
        adapter,
        added,
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        layers_to_transform=[1],
    )
    change_model(merged, changed)
    check(model, adapter, merged)


def test_transformers_module_names_are_found(tmp_path: Path) -> None:
    model = make_checkpoint("GPT2LMHeadModel", tmp_path / "model", seed=3)
    adapter = make_adapter(
        model, tmp_path / "adapter", 4, target_modules=r".*h\.\d+\.(attn|mlp)\.(c_attn|c_proj|c_fc)"
    )
    merged = merge(model, adapter, tmp_path / "merged")
    path = adapter / "adapter_model.safetensors"
    bare = {
        name.replace("model.transformer.h", "model.h"): tensor
        for name, tensor in load_file(path).items()
    }
    save_file(bare, path)
    check(model, adapter, merged)


def test_model_without_target_modules_is_rejected_at_startup(tmp_path: Path) -> None:
    folder = make_checkpoint("BartForConditionalGeneration", tmp_path / "model", seed=3)
    with pytest.raises(Exception, match="adapters are not served for it"):
        LLM(str(folder), enable_lora=True, max_model_len=64, log_level="error")
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_replicated_kv_heads_with_sharded_adapters(sharded: bool, tmp_path: Path) -> None:
    model = make_checkpoint("LlamaForCausalLM", tmp_path / "model", seed=3, num_key_value_heads=1)
    adapter = make_adapter(model, tmp_path / "adapter", 5)
    merged = merge(model, adapter, tmp_path / "merged")
    check(model, adapter, merged, tensor_parallel_size=2, fully_sharded_loras=sharded)
