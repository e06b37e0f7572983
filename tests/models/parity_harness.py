"""Runs a decoder step by step without an engine: one sequence, its keys and values in one plain cache."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file

from core.contracts import AttentionParams, BuildContext, ForwardBatch
from core.nn.decoder import Decoder
from core.nn.linear import PlainWeights
from core.nn.parallel import ParallelGroup
from core.ops.table import OpTable

MODULES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Phi3ForCausalLM": "phi3",
    "Olmo2ForCausalLM": "olmo2",
    "GPT2LMHeadModel": "gpt2",
    "GPTNeoXForCausalLM": "gpt_neox",
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}


class OneSequence:
    """Attention over one sequence; the cache is [2, length, kv_heads, head_size] and the plan its first position."""

    graph_support = "none"

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        plan: int,
    ) -> torch.Tensor:
        end = plan + query.shape[0]
        cache[0, plan:end], cache[1, plan:end] = key, value
        group = params.heads // params.kv_heads
        keys = cache[0, :end].repeat_interleave(group, 1)
        values = cache[1, :end].repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", query, keys) * params.scale
        if params.softcap is not None:
            scores = torch.tanh(scores / params.softcap) * params.softcap
        distance = torch.arange(plan, end)[:, None] - torch.arange(end)[None]
        hidden = distance < 0
        if params.window is not None:
            hidden |= distance >= params.window
        scores = scores.masked_fill(hidden, float("-inf"))
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)


def context(group: ParallelGroup | None = None, dtype: torch.dtype = torch.float32) -> BuildContext:
    """Return a context of plain weights, reference ops and `OneSequence`."""
    backend: Any = OneSequence()
    return BuildContext(dtype, "cpu", backend, PlainWeights(), OpTable(), group or ParallelGroup())


def read_config(folder: Path) -> SimpleNamespace:
    """Return config.json as an object."""
    return SimpleNamespace(**json.loads((folder / "config.json").read_text()))


def spec_of(architecture: str, config: Any) -> Any:
    """Return the facts an architecture's function reads from a config."""
    return importlib.import_module(f"builtin_plugins.models.{MODULES[architecture]}").spec(config)


def load(architecture: str, folder: Path, group: ParallelGroup | None = None) -> Decoder:
    """Return the loaded decoder of a checkpoint."""
    decoder = Decoder(spec_of(architecture, read_config(folder)), context(group))
    decoder.load_weights(load_file(folder / "model.safetensors").items())
    return decoder


class Session:
    """One sequence of a decoder."""

    def __init__(self, decoder: Decoder, length: int = 256) -> None:
        self.decoder = decoder
        self.position = 0
        decoder.bind_kv([torch.zeros(2, length, k.spec.kv_heads, k.spec.head_size) for k in decoder.kv_layers])

    @torch.inference_mode()
    def step(self, ids: list[int]) -> torch.Tensor:
        """Compute these tokens and return log-probabilities after each."""
        start, count = self.position, len(ids)
        tokens = torch.tensor(ids)
        batch = ForwardBatch(
            input_ids=tokens,
            positions=torch.arange(start, start + count),
            attention=[start] * len(self.decoder.kv_layers),
            rows=[0],
            starts=[start],
            counts=[count],
            prompt_lens=[count],
            token_ids=tokens[None],
        )
        self.position += count
        return self.decoder.logits(self.decoder(batch)).log_softmax(-1)
