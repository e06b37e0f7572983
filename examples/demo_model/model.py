"""The demo model in plain PyTorch: a small Qwen3, its parameters named as in Hugging Face
checkpoints.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from examples.demo_model.compute import PLAIN, Compute, attend, norm
from examples.demo_model.layout import Layout


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model; the defaults are those of the demo model."""

    vocab_size: int = 3072
    hidden_size: int = 256
    intermediate_size: int = 768
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048


DRAFT = Shape(
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
)
"""The draft model for speculative decoding."""


class Norm(nn.Module):
    """The weight of an RMS norm."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


class Attention(nn.Module):
    """Grouped-query attention with rotary positions and a norm on every query and key head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        queries = shape.num_attention_heads * shape.head_dim
        keys = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden_size, bias=False)
        self.q_norm = Norm(shape.head_dim)
        self.k_norm = Norm(shape.head_dim)


class Mlp(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)


class Layer(nn.Module):
    """Attention and feed-forward, each after a norm and added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = Norm(shape.hidden_size)
        self.post_attention_layernorm = Norm(shape.hidden_size)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout, compute: Compute
    ) -> Tensor:
        """Return the stream after this layer. x: [tokens, hidden]"""
        own = self.self_attn
        mlp = self.mlp
        eps = self.shape.rms_norm_eps
        projections = (own.q_proj.weight, own.k_proj.weight, own.v_proj.weight)
        head_weights = (own.q_norm.weight, own.k_norm.weight)
        qkv = compute.enter(
            x, self.input_layernorm.weight, projections, head_weights, cos, sin, eps
        )
        blocks = zip(layout.split(qkv), layout.unseen, strict=True)
        mixed = layout.join(
            [attend(part, unseen, self.shape.num_attention_heads) for part, unseen in blocks]
        )
        weights = (own.o_proj.weight, self.post_attention_layernorm.weight)
        return compute.leave(
            x, mixed, *weights, mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight, eps
        )


class Stack(nn.Module):
    """Embedding, layers and final norm; what Hugging Face calls `model`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = Norm(shape.hidden_size)


class DemoModel(nn.Module):
    """A decoder with tied embedding and output head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Stack(shape)
        self.cos: Tensor
        self.sin: Tensor
        half = shape.head_dim // 2
        rates = shape.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = torch.arange(shape.max_position_embeddings, dtype=torch.float32)[:, None] * rates
        angles = torch.cat([angles, angles], dim=-1)[:, None]  # [positions, 1, head_dim]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def initialise(self, seed: int) -> None:
        """Initialise matrices with noise; those that write to the residual stream start smaller."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                continue
            scale = 0.02 if "embed" in name else parameter.shape[1] ** -0.5 * 0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                scale /= (2 * self.shape.num_hidden_layers) ** 0.5
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)

    def forward(
        self,
        ids: Tensor,
        layout: Layout,
        compute: Compute = PLAIN,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Return the last hidden states of concatenated conversations. ids: [tokens]

        dtype: what is computed in, default that of the weights.
        """
        x = self.model.embed_tokens(ids)
        x = x.to(dtype or x.dtype)
        cos = self.cos[layout.positions]
        sin = self.sin[layout.positions]
        for layer in self.model.layers:
            x = layer(x, cos, sin, layout, compute)
        return norm(x, self.model.norm.weight, self.shape.rms_norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states."""
        return F.linear(hidden, self.model.embed_tokens.weight)


def save_model(model: DemoModel, folder: Path, special_ids: dict[str, int]) -> None:
    """Write config, generation config and bfloat16 weights as a Hugging Face folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **asdict(model.shape),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": False,
        "dtype": "bfloat16",
        "bos_token_id": None,
        **special_ids,
    }
    generation = {"do_sample": False, "temperature": 0.0, "max_new_tokens": 512, **special_ids}
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", generation)
    tensors = {
        name: value.detach().to("cpu", torch.bfloat16).contiguous()
        for name, value in model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load_model(folder: Path) -> DemoModel:
    """Return the model of a folder that `save_model` wrote, in float32."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = DemoModel(Shape(**{name: config[name] for name in Shape.__dataclass_fields__}))
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({name: value.float() for name, value in tensors.items()})
    return model


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
