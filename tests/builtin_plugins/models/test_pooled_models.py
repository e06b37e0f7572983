"""Every pooling architecture against transformers: float32, tiny random weights, every option
on.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from core import LLM
from core.models.layers.positions import inverse_frequencies
from core.testing.checkpoints import VOCAB, make_checkpoint, tiny_config
from core.testing.tiny_encoders import POOLED

TOLERANCE = 1e-4
LENGTHS = (70, 3, 41)
"""Lengths above and below every window and exact distance bucket."""
ALWAYS = (
    "Model",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "Qwen3ForSequenceClassification",
)


def architectures() -> list[Any]:
    """Return all; some heads run under `make test-all` only."""
    rare = {"XLMRobertaModel", "LlamaModel", "Qwen2Model", "Qwen3Model"}
    return [
        pytest.param(
            name, marks=[] if name.endswith(ALWAYS) and name not in rare else pytest.mark.slow
        )
        for name in sorted(POOLED)
    ]


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(5, VOCAB - 3, (length,), generator=generator).tolist() for length in LENGTHS
    ]


def open_engine(folder: Path, **settings: Any) -> LLM:
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": 128,
        "num_threads": 1,
        "log_level": "error",
    }
    return LLM(str(folder), **(defaults | {"kv_cache_memory_bytes": 1 << 22} | settings))


@torch.inference_mode()
def by_transformers(architecture: str, folder: Path, ids: list[int]) -> torch.Tensor:
    """Return transformers' output, pooled like the engine's default."""
    config = transformers.AutoConfig.from_pretrained(folder)
    model_class = getattr(transformers, architecture)
    model = model_class.from_pretrained(
        folder, config=config, attn_implementation="eager", dtype=torch.float32
    )
    ones = torch.ones(1, len(ids), dtype=torch.long)
    out = model.eval()(torch.tensor([ids]), attention_mask=ones, output_hidden_states=True)
    if "Classification" in architecture:
        return out.logits[0].softmax(-1)
    hidden = out.hidden_states[-1][0] if "MaskedLM" in architecture else out.last_hidden_state[0]
    if architecture in ("T5EncoderModel", "Gemma3TextModel"):
        pooled = hidden.mean(0)
    else:
        pooled = hidden[-1] if architecture.startswith(("Llama", "Qwen")) else hidden[0]
    return torch.nn.functional.normalize(pooled, dim=0)


@pytest.mark.parametrize("architecture", architectures())
def test_embeddings_and_scores_equal_transformers(architecture: str, tmp_path: Path) -> None:
    folder = make_checkpoint(architecture, tmp_path, seed=1)
    expected = [by_transformers(architecture, folder, ids) for ids in prompts()]
    with open_engine(folder) as llm:
        assert llm.config.model.runner == "pooling"
        together = llm.encode(prompts(), use_tqdm=False)
        alone = llm.encode(prompts()[0], use_tqdm=False)
    for output, target in zip([*together, *alone], [*expected, expected[0]], strict=True):
        torch.testing.assert_close(output.outputs.data, target, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("pooling_type", ["bos", "late"])
def test_eurobert_pools_by_its_config(pooling_type: str, tmp_path: Path) -> None:
    name = "EuroBertForSequenceClassification"
    folder = make_checkpoint(name, tmp_path, seed=1, classifier_pooling=pooling_type)
    with open_engine(folder) as llm:
        found = llm.encode(prompts(), use_tqdm=False)
    for ids, output in zip(prompts(), found, strict=True):
        torch.testing.assert_close(
            output.outputs.data, by_transformers(name, folder, ids), atol=TOLERANCE, rtol=0
        )


@pytest.mark.parametrize(
    "architecture", ["BertModel", "ModernBertModel", "MPNetModel", "DebertaV2Model"]
)
def test_embedding_depends_on_order_and_later_tokens(architecture: str, tmp_path: Path) -> None:
    ids = prompts()[0]
    changed = [*ids[:-2], ids[-1], ids[-2]]
    with open_engine(make_checkpoint(architecture, tmp_path, seed=1)) as llm:
        first, second = llm.encode([ids, changed], pooling_task="token_embed", use_tqdm=False)
    assert (first.outputs.data[-10] - second.outputs.data[-10]).abs().max() > 1e-3


def test_old_norm_names_and_bare_model_names_are_loaded(tmp_path: Path) -> None:
    folder = make_checkpoint("BertForMaskedLM", tmp_path, seed=1)
    ids = prompts()[0]
    with open_engine(folder) as llm:
        expected = llm.embed(ids, use_tqdm=False)[0].outputs.embedding
    tensors = load_file(folder / "model.safetensors")
    old = {
        name.removeprefix("bert.")
        .replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta"): t
        for name, t in tensors.items()
    }
    save_file(old, folder / "model.safetensors")
    with open_engine(folder) as llm:
        assert llm.embed(ids, use_tqdm=False)[0].outputs.embedding == expected


def test_published_nomic_config_equals_transformers_fields(spec_of: Any) -> None:
    ours = tiny_facts("NomicBertModel")
    published = SimpleNamespace(
        architectures=["NomicBertModel"],
        vocab_size=VOCAB,
        n_embd=64,
        n_head=4,
        n_inner=96,
        n_layer=3,
        n_positions=256,
        type_vocab_size=2,
        layer_norm_epsilon=1e-12,
        rotary_emb_base=1000,
        rotary_emb_fraction=1.0,
        qkv_proj_bias=False,
        activation_function="swiglu",
    )
    assert spec_of("NomicBertModel", published) == spec_of("NomicBertModel", ours)


def test_xlm_roberta_with_rotary_positions_is_jina(spec_of: Any) -> None:
    ours = tiny_facts("JinaEmbeddingsV3Model")
    ours.architectures = ["XLMRobertaModel"]
    published = SimpleNamespace(
        **{**vars(ours), "position_embedding_type": "rotary", "rotary_emb_base": 20000.0}
    )
    del published.rope_parameters
    assert spec_of("XLMRobertaModel", published) == spec_of("JinaEmbeddingsV3Model", ours)


def test_published_gte_scales_all_rope_frequencies(spec_of: Any) -> None:
    published = tiny_facts("GteModel")
    published.rope_parameters = None
    published.rope_theta = 500.0
    published.rope_scaling = {"type": "ntk", "factor": 2.0}
    rope = spec_of("NewModel", published).layers[0].attention.rope
    exponents = torch.arange(0, 16, 2) / 16
    expected = 1.0 / (1000.0**exponents) / 2.0 ** (2 / 16)
    torch.testing.assert_close(inverse_frequencies(rope, 128)[0], expected)


def tiny_facts(architecture: str) -> SimpleNamespace:
    return SimpleNamespace(
        **json.loads(tiny_config(architecture, architectures=[architecture]).to_json_string())
    )
