"""Heads with layers of other families than Llama draft as transformers' own layers do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from builtin_plugins.speculators.chain import ChainSpeculator
from core.testing.checkpoints import VOCAB, make_checkpoint, tiny_config
from tests.builtin_plugins.speculators import reference_heads
from tests.builtin_plugins.speculators.random_heads import HIDDEN, random_tensors, write_head
from tests.builtin_plugins.speculators.test_heads import drafts_of

ONE_LAYER: Mapping[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    # vLLM's EagleLlama4ForCausalLM: a dense layer, and no norm of the inputs.
    "llama4_text": (
        "Llama4ForCausalLM",
        {
            "num_hidden_layers": 1,
            "moe_layers": [],
            "no_rope_layers": [1],
            "layer_types": ["chunked_attention"],
        },
        (),
    ),
    # vLLM's EagleMiniCPMForCausalLM: Granite's layers, published under other names.
    "minicpm": (
        "GraniteForCausalLM",
        {
            "num_hidden_layers": 1,
            "residual_multiplier": 1.4 / 4**0.5,
            "attention_multiplier": 0.25,
            "attention_bias": False,
            "mlp_bias": False,
            "embedding_multiplier": 1.0,
        },
        ("input_norm1", "input_norm2"),
    ),
}
PUBLISHED_FIELDS: Mapping[str, dict[str, Any]] = {
    "minicpm": {"scale_depth": 1.4, "mup_denominator": 4, "scale_emb": 12.0, "dim_model_base": 16},
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama") / "model"
    return make_checkpoint("LlamaForCausalLM", folder, seed=1)


def one_layer(family: str, folder: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return transformers' model of one layer, and a head of that layer under published names."""
    import transformers

    architecture, fields, norms = ONE_LAYER[family]
    make_checkpoint(architecture, folder, seed=3, **fields)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    tensors = {
        name.removeprefix("model."): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
        if not name.startswith(("model.embed_tokens", "lm_head"))
    }
    if family == "minicpm":
        tensors = {f"eagle_{n}" if n.startswith("layers") else n: t for n, t in tensors.items()}
    shapes = {"fc.weight": (HIDDEN, 2 * HIDDEN), **{f"{n}.weight": (HIDDEN,) for n in norms}}
    return model, {**tensors, **random_tensors(shapes)}


@pytest.mark.parametrize(
    "family",
    [pytest.param(n, marks=[] if n == "llama4_text" else pytest.mark.slow) for n in ONE_LAYER],
)
def test_eagle_head_of_family_drafts_as_its_layer(
    llama: Path, family: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, tensors = one_layer(family, tmp_path / "layer")
    stated = json.loads((tmp_path / "layer" / "config.json").read_text())
    stated |= {"model_type": family, **PUBLISHED_FIELDS.get(family, {})}
    head = write_head(tmp_path / "head", stated, tensors)
    norms = ONE_LAYER[family][2]

    def step(
        embedded: torch.Tensor, hidden: torch.Tensor, w: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if norms:
            embedded, hidden = (
                functional.rms_norm(x, (HIDDEN,), w[f"{name}.weight"], stated["rms_norm_eps"])
                for x, name in zip((embedded, hidden), norms, strict=True)
            )
        x = functional.linear(torch.cat((embedded, hidden), -1), w["fc.weight"])
        out = model.model(inputs_embeds=x[None], output_hidden_states=True)
        if family == "minicpm":  # its layer's output, without the final norm
            found = captured.pop()
            return found, found
        return out.last_hidden_state[0], out.last_hidden_state[0]

    captured: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, given: captured.append(given[0][0]))
    target = reference_heads.Target(llama)
    config = {"method": "eagle", "model": str(head), "num_speculative_tokens": 3}
    for tokens, draft, _ in drafts_of(monkeypatch, ChainSpeculator, llama, config):
        hidden = target.states(tokens[:-1])[-1]
        assert draft == reference_heads.chained(
            step, target, tokens, hidden, [0] * len(draft), tensors
        )


@pytest.mark.slow
def test_longcat_mtp_layer_drafts_as_its_attention_and_mlp(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The layer is LongCat's own: attention with scaled latents, a dense MLP."""
    import transformers

    folder = make_checkpoint("LongcatFlashForCausalLM", tmp_path / "model", seed=1)
    file = folder / "model.safetensors"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    layer = model.model.layers[0]
    stored = "model.mtp.layers.0"
    own = {
        f"{stored}.self_attn.{name}": value
        for name, value in layer.self_attn[1].state_dict().items()
    }
    own |= {
        f"{stored}.transformer_layer.mlp.{name}": value
        for name, value in layer.mlps[1].state_dict().items()
    }
    shapes: dict[str, tuple[int, ...]] = {
        f"{stored}.{name}.weight": (HIDDEN,)
        for name in ("enorm.m", "hnorm.m", "input_layernorm", "post_attention_layernorm")
    }
    shapes |= {f"{stored}.eh_proj.weight": (HIDDEN, 2 * HIDDEN), "model.mtp.norm.weight": (HIDDEN,)}
    shapes["model.mtp.embed_tokens.weight"] = (VOCAB, HIDDEN)
    own = {name: value.clone() for name, value in own.items()} | random_tensors(shapes)
    save_file({**load_file(file), **own}, file, metadata={"format": "pt"})
    eps = tiny_config("LongcatFlashForCausalLM").rms_norm_eps

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, (HIDDEN,), own[f"{name}.weight"], eps)

    def step(
        embedded: torch.Tensor, hidden: torch.Tensor, w: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        both = norm(embedded, f"{stored}.enorm.m"), norm(hidden, f"{stored}.hnorm.m")
        x = functional.linear(torch.cat(both, -1), w[f"{stored}.eh_proj.weight"])
        positions = torch.arange(len(x))[None]
        rotary = model.model.rotary_emb(x[None], positions)
        mask = torch.full((len(x), len(x)), torch.finfo(x.dtype).min).triu(1)[None, None]
        read = norm(x, f"{stored}.input_layernorm")[None]
        attended, _ = layer.self_attn[1](
            hidden_states=read, position_embeddings=rotary, attention_mask=mask
        )
        x = x + attended[0]
        x = x + layer.mlps[1](norm(x, f"{stored}.post_attention_layernorm"))
        out = norm(x, "model.mtp.norm")
        return out, out

    target = reference_heads.Target(folder)
    config = {"method": "mtp", "num_speculative_tokens": 3}
    for tokens, draft, _ in drafts_of(monkeypatch, ChainSpeculator, folder, config):
        hidden = target.states(tokens[:-1])[-1]
        assert draft == reference_heads.chained(step, target, tokens, hidden, [0] * len(draft), own)
