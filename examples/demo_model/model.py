"""The demo model in plain PyTorch: a small Qwen3, its parameters named as in Hugging Face checkpoints."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

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


DRAFT = Shape(hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
"""The draft model for speculative decoding."""


_LONGEST_PLAIN = 192


class Norm(nn.Module):
    """RMS norm over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return x scaled to unit mean square, times the weight."""
        scaled: Tensor = _Scaled.apply(x, self.weight.to(x.dtype), self.eps)  # type: ignore[no-untyped-call]
        return scaled


class _Scaled(torch.autograd.Function):
    """RMS norm with its gradient in few passes over memory, which is what it costs on a CPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        rate = (norm.square_() / x.shape[-1]).add_(eps).rsqrt_().to(x.dtype)
        unit: Tensor = x * rate
        ctx.save_for_backward(unit, rate, weight)
        return unit * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        unit, rate, weight = ctx.saved_tensors
        product = grad * unit
        to_weight = product.flatten(0, -2).sum(0)
        along = (product @ weight / unit.shape[-1]).unsqueeze(-1)
        return (grad * weight).addcmul_(unit, along, value=-1).mul_(rate), to_weight, None


class Attention(nn.Module):
    """Grouped-query attention with rotary positions and a norm on every query and key head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        queries = shape.num_attention_heads * shape.head_dim
        keys = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden_size, bias=False)
        self.q_norm = Norm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = Norm(shape.head_dim, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
        """Return each token's attention over those before it in its conversation. x: [tokens, hidden]"""
        heads = (x.shape[0], -1, self.shape.head_dim)
        q = rotate(self.q_norm(self.q_proj(x).view(heads)), cos, sin)
        k = rotate(self.k_norm(self.k_proj(x).view(heads)), cos, sin)
        v = self.v_proj(x).view(heads)
        counts = [self.shape.num_attention_heads, self.shape.num_key_value_heads, self.shape.num_key_value_heads]
        groups = counts[0] // counts[1]
        mixed = []
        for part, (rows, length) in zip(layout.split(torch.cat([q, k, v], dim=1)), layout.sizes, strict=True):
            query, key, value = torch.split(part.view(rows, length, -1, heads[2]).transpose(1, 2), counts, dim=1)
            attended = attend(query, key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1))
            mixed.append(attended.transpose(1, 2).reshape(rows * length, -1))
        return self.o_proj(layout.join(mixed))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return down(silu(gate) * up)."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
        """Return the stream after this layer."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, layout)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class Stack(nn.Module):
    """Embedding, layers and final norm; what Hugging Face calls `model`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, ids: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
        """Return the last hidden state of every token."""
        x = self.embed_tokens(ids)
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            x = x.to(torch.bfloat16)
        for layer in self.layers:
            x = layer(x, cos, sin, layout)
        return self.norm(x)  # type: ignore[no-any-return]


class DemoModel(nn.Module):
    """A decoder whose embedding is also its output head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Stack(shape)
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def initialise(self, seed: int) -> None:
        """Fill every matrix with small noise; what writes into the stream starts smaller, by depth."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                continue
            scale = 0.02 if "embed" in name else parameter.shape[1] ** -0.5 * 0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                scale /= (2 * self.shape.num_hidden_layers) ** 0.5
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)

    def forward(self, ids: Tensor, layout: Layout) -> Tensor:
        """Return the last hidden states of conversations one behind the other. ids: [tokens]"""
        cos, sin = self._rotation(ids.device)
        return self.model(ids, cos[layout.positions], sin[layout.positions], layout)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states."""
        return F.linear(hidden, self.model.embed_tokens.weight)

    def _rotation(self, device: torch.device) -> tuple[Tensor, Tensor]:
        autocast = torch.is_autocast_enabled(device.type)
        key = (device, torch.bfloat16 if autocast else self.model.embed_tokens.weight.dtype)
        if key not in self._tables:
            half = self.shape.head_dim // 2
            rates = self.shape.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
            angles = torch.arange(self.shape.max_position_embeddings, dtype=torch.float32)[:, None] * rates
            angles = torch.cat([angles, angles], dim=-1)[:, None]  # [positions, 1, head_dim]
            self._tables[key] = (angles.cos().to(device, key[1]), angles.sin().to(device, key[1]))
        return self._tables[key]


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention; short sequences by plain products, whose gradient is much faster on a CPU."""
    length = q.shape[2]
    if length > _LONGEST_PLAIN:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5  # [batch, heads, length, length]
    later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu_(1)
    return torch.softmax(scores.masked_fill(later, float("-inf")), dim=-1, dtype=torch.float32).to(v.dtype) @ v


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x turned by its position. x: [tokens, heads, head_dim]"""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


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
        name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in model.state_dict().items()
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
