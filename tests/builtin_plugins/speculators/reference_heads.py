"""Reference heads in plain PyTorch: whole sequences, one at a time, without a cache.

Tensor names are those of published checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

Weights = Mapping[str, torch.Tensor]
HEADS = 4
KV_HEADS = 2
SIZE = 16
THETA = 10000.0
EPS = 1e-6


class Target:
    """A transformers model as the target."""

    def __init__(self, folder: Any) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.embedding = self.model.get_input_embeddings().weight
        self.head = self.model.get_output_embeddings().weight

    @torch.inference_mode()
    def states(self, tokens: Sequence[int]) -> list[torch.Tensor]:
        """Return the residual stream before each layer and the final hidden states, [n, hidden]."""
        states = self.model.model(
            torch.tensor([list(tokens)]), output_hidden_states=True
        ).hidden_states
        return [state[0] for state in states]


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def attention(x: torch.Tensor, weights: Weights, prefix: str, bias: bool = False) -> torch.Tensor:
    """Return causal attention over x [n, width], with rotary embedding."""
    count = len(x)

    def linear(name: str) -> torch.Tensor:
        return F.linear(
            x,
            weights[f"{prefix}.{name}.weight"],
            weights[f"{prefix}.{name}.bias"] if bias else None,
        )

    query = linear("q_proj").view(count, HEADS, SIZE)
    key = linear("k_proj").view(count, KV_HEADS, SIZE).repeat_interleave(HEADS // KV_HEADS, 1)
    value = linear("v_proj").view(count, KV_HEADS, SIZE).repeat_interleave(HEADS // KV_HEADS, 1)
    angles = torch.outer(
        torch.arange(count).float(), THETA ** (-torch.arange(0, SIZE, 2).float() / SIZE)
    )
    cos, sin = (torch.cat((f, f), -1)[:, None] for f in (angles.cos(), angles.sin()))

    def rotate(part: torch.Tensor) -> torch.Tensor:
        return part * cos + torch.cat((-part[..., SIZE // 2 :], part[..., : SIZE // 2]), -1) * sin

    scores = torch.einsum("qhd,khd->hqk", rotate(query), rotate(key)) / math.sqrt(SIZE)
    scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), float("-inf"))
    out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).reshape(count, -1)
    return F.linear(out, weights[f"{prefix}.o_proj.weight"])


def mlp(x: torch.Tensor, weights: Weights, prefix: str) -> torch.Tensor:
    gate, up = (F.linear(x, weights[f"{prefix}.{name}_proj.weight"]) for name in ("gate", "up"))
    return F.linear(F.silu(gate) * up, weights[f"{prefix}.down_proj.weight"])


def eagle(
    embedded: torch.Tensor, hidden: torch.Tensor, w: Weights
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the LM head's input, and the hidden states for the next step."""
    x = F.linear(torch.cat((embedded, hidden), -1), w["fc.weight"])
    x = x + attention(x, w, "layers.0.self_attn")
    x = x + mlp(norm(x, w["layers.0.post_attention_layernorm.weight"]), w, "layers.0.mlp")
    return x, x


def eagle3(
    embedded: torch.Tensor, hidden: torch.Tensor, w: Weights
) -> tuple[torch.Tensor, torch.Tensor]:
    both = (
        norm(embedded, w["midlayer.input_layernorm.weight"]),
        norm(hidden, w["midlayer.hidden_norm.weight"]),
    )
    x = hidden + attention(torch.cat(both, -1), w, "midlayer.self_attn")
    x = x + mlp(norm(x, w["midlayer.post_attention_layernorm.weight"]), w, "midlayer.mlp")
    return norm(x, w["norm.weight"]), x


def mimo(
    embedded: torch.Tensor, hidden: torch.Tensor, w: Weights
) -> tuple[torch.Tensor, torch.Tensor]:
    prefix = "model.mtp_layers.0"
    both = (
        norm(hidden, w[f"{prefix}.hidden_layernorm.weight"]),
        norm(embedded, w[f"{prefix}.token_layernorm.weight"]),
    )
    x = F.linear(torch.cat(both, -1), w[f"{prefix}.input_proj.weight"])
    x = x + attention(
        norm(x, w[f"{prefix}.input_layernorm.weight"]), w, f"{prefix}.self_attn", bias=True
    )
    x = x + mlp(norm(x, w[f"{prefix}.post_attention_layernorm.weight"]), w, f"{prefix}.mlp")
    out = norm(x, w[f"{prefix}.final_layernorm.weight"])
    return out, out


@torch.inference_mode()
def chained(
    step: Any,
    target: Target,
    tokens: Sequence[int],
    hidden: torch.Tensor,
    ranks: Sequence[int],
    w: Weights,
) -> list[int]:
    """Return the draft after `tokens`, of the given ranks.

    `hidden`: [len(tokens) - 1, hidden], the hidden states of the target.
    """
    head = w.get("lm_head.weight", target.head)
    embedding = w.get("embed_tokens.weight", target.embedding)
    known = list(tokens)
    for rank in ranks:
        out, next_hidden = step(embedding[known[1:]], hidden, w)
        best = ranked(F.linear(out[-1], head), rank)
        known.append(best + int(w["d2t"][best]) if "d2t" in w else best)
        hidden = torch.cat((hidden, next_hidden[-1:]))
    return known[len(tokens) :]


def ranked(logits: torch.Tensor, rank: int) -> int:
    return int(logits.argsort(descending=True, stable=True)[rank])


@torch.inference_mode()
def model_itself(target: Target, tokens: Sequence[int], ranks: Sequence[int]) -> list[int]:
    known = list(tokens)
    for rank in ranks:
        known.append(ranked(target.model(torch.tensor([known])).logits[0, -1], rank))
    return known[len(tokens) :]


@torch.inference_mode()
def medusa(hidden: torch.Tensor, w: Weights, ranks: Sequence[int]) -> list[int]:
    found = []
    for i, rank in enumerate(ranks):
        x = hidden + F.silu(F.linear(hidden, w[f"{i}.0.linear.weight"], w[f"{i}.0.linear.bias"]))
        found.append(ranked(F.linear(x, w[f"{i}.1.weight"]), rank))
    return found


@torch.inference_mode()
def mlp_speculator(
    hidden: torch.Tensor, token: int, w: Weights, steps: int, inner: int, *, tied: bool
) -> list[int]:
    state_weight = 0.5 ** (0.5 / steps)
    token_weight = math.sqrt((1 - state_weight**2) * (inner / 2))
    state = norm(hidden, torch.tensor(1.0)) / math.sqrt(2)
    found = []
    for i in range(steps):
        index = 0 if tied else i
        projection = min(i, 1) if tied else i
        mixed = F.linear(state, w[f"speculator.proj.{projection}.weight"])
        mixed = mixed + w[f"speculator.emb.{index}.weight"][token] * (token_weight / state_weight)
        state = F.gelu(
            norm(mixed, w[f"speculator.ln.{index}.weight"]) + w[f"speculator.ln.{index}.bias"]
        )
        token = int(F.linear(state, w[f"speculator.head.{index}.weight"]).argmax())
        found.append(token)
    return found
