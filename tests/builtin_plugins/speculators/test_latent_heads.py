"""EAGLE heads with latent attention draft as transformers' layers do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3 import modeling_deepseek_v3

from builtin_plugins.speculators.chain import ChainSpeculator
from core import LLM
from core.testing.checkpoints import make_checkpoint, tiny_config
from tests.builtin_plugins.speculators import reference_heads
from tests.builtin_plugins.speculators.large_batch import BASE, answers
from tests.builtin_plugins.speculators.mixed_requests import counted
from tests.builtin_plugins.speculators.random_heads import random_tensors, write_head
from tests.builtin_plugins.speculators.test_heads import drafts_of

DEEPSEEK = "DeepseekV3ForCausalLM"


def head_config() -> dict[str, Any]:
    """Return the config.json of a head, in the form of `EagleDeepSeekMTPModel`."""
    inner = tiny_config(DEEPSEEK).to_dict()
    inner |= {"num_hidden_layers": 1, "first_k_dense_replace": 3, "rms_norm_eps": 1e-6}
    return {"architectures": ["EagleDeepSeekMTPModel"], "model_type": "eagle", "model": inner}


def head_tensors(folder: Path) -> Mapping[str, torch.Tensor]:
    """Return random tensors of the head's published names."""
    shapes: dict[str, tuple[int, ...]] = {}
    names = ("fc.weight", "enorm.weight", "hnorm.weight", "norm.weight")
    names += ("layers.0.input_layernorm.weight",)
    head = write_head(
        folder / "names", head_config(), {name: torch.ones(1) for name in names}
    )  # they decide which norms the head has
    target = make_checkpoint(DEEPSEEK, folder / "any", seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "builtin_plugins.speculators.heads.HeadSpeculator._load_weights",
            lambda self, weights, *_: shapes.update(weights.shapes()),
        )
        config = {"method": "eagle", "model": str(head)}
        with LLM(str(target), speculative_config=config, **BASE):
            pass
    return random_tensors(shapes)


class Reference:
    """The head as layers of transformers, over whole sequences."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        inner = {**head_config()["model"], "first_k_dense_replace": 0}
        config = DeepseekV3Config(**inner)
        config._attn_implementation = "eager"
        config._experts_implementation = "eager"
        self._layer: Any = modeling_deepseek_v3.DeepseekV3DecoderLayer(config, 0).eval()
        self._rotary: Any = modeling_deepseek_v3.DeepseekV3RotaryEmbedding(config)
        own = {
            name.removeprefix("layers.0."): tensor
            for name, tensor in tensors.items()
            if name.startswith("layers.0.") and ".experts." not in name
        }
        experts = range(config.n_routed_experts)
        prefix = "layers.0.mlp.experts"

        def stacked(part: str) -> torch.Tensor:
            return torch.stack([tensors[f"{prefix}.{i}.{part}.weight"] for i in experts])

        own["mlp.experts.gate_up_proj"] = torch.cat([stacked("gate_proj"), stacked("up_proj")], 1)
        own["mlp.experts.down_proj"] = stacked("down_proj")
        self._layer.load_state_dict(own)

    def __call__(
        self, embedded: torch.Tensor, hidden: torch.Tensor, w: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the LM head's input, and the hidden states for the next step."""
        norm = reference_heads.norm
        both = (norm(embedded, w["enorm.weight"]), norm(hidden, w["hnorm.weight"]))
        x = F.linear(torch.cat(both, -1), w["fc.weight"])[None]
        count = x.shape[1]
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        positions = torch.arange(count)[None]
        out = self._layer(
            x,
            attention_mask=mask,
            position_ids=positions,
            position_embeddings=self._rotary(x, positions),
        )
        x = (out[0] if isinstance(out, tuple) else out)[0]
        return norm(x, w["norm.weight"]), x


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, torch.Tensor]]:
    folder = tmp_path_factory.mktemp("latent_heads")
    tensors = head_tensors(folder)
    return write_head(folder / "head", head_config(), tensors), tensors


def test_latent_eagle_heads_match_reference(
    head: tuple[Path, Mapping[str, torch.Tensor]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, tensors = head
    model = make_checkpoint(DEEPSEEK, tmp_path, seed=1)
    target = reference_heads.Target(model)
    step = Reference(tensors)
    config = {"method": "eagle", "model": str(folder), "num_speculative_tokens": 3}
    for tokens, draft, _ in drafts_of(monkeypatch, ChainSpeculator, model, config):
        hidden = target.states(tokens[:-1])[-1]
        assert draft == reference_heads.chained(
            step, target, tokens, hidden, [0] * len(draft), tensors
        )


def test_latent_eagle_heads_change_no_tokens(
    head: tuple[Path, Mapping[str, torch.Tensor]], tmp_path: Path
) -> None:
    model = make_checkpoint(DEEPSEEK, tmp_path, seed=1)
    config = {"method": "eagle", "model": str(head[0]), "adaptive": False}
    with LLM(str(model), **BASE) as llm:
        expected = answers(llm)
    with LLM(str(model), speculative_config=config, **BASE) as llm:
        assert answers(llm) == expected
        assert counted(llm).num_draft_tokens > 0
