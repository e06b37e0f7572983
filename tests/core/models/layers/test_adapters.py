"""LoRA adapters on every kind of layer equal merged weights, on one and two ranks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from core.model_spec.parallel import ParallelGroup
from core.model_spec.weight_shard import WeightShard
from core.models.layers.decoder import Decoder
from core.models.layers.embedding import Embedding, Head
from core.models.layers.experts import Experts
from core.models.layers.linear import AdapterSlot, Linear
from core.testing.checkpoints import make_checkpoint
from core.testing.one_sequence import Session, plain_context, read_config
from tests.core.models.layers.test_tensor_parallel import Meeting, ThreadGroup, find_spec

IDS = list(range(100, 130))
RANK = 3
CASES = [
    ("LlamaForCausalLM", "llama:spec", {}),
    ("Phi3ForCausalLM", "phi3:phi3", {}),
    ("GPT2LMHeadModel", "gpt2:spec", {}),  # with biases, transposed
    ("GPTNeoXForCausalLM", "gpt_like:gpt_neox", {}),  # the rows of heads in another order
    ("Qwen3MoeForCausalLM", "qwen_moe:qwen3_moe", {"vocab_size": 301}),
    ("GptOssForCausalLM", "gpt_oss:spec", {}),  # gate and up in turn, biases of experts
]


class Deltas:
    """For each checkpoint prefix a pair of matrices; those of all experts have one pair each."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(7)
        self.pairs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def add(self, prefix: str, part: WeightShard) -> None:
        leading = (part.num_experts,) if part.num_experts else ()
        a = (
            torch.randn(*leading, RANK, part.in_features, generator=self._generator)
            / part.in_features**0.5
        )
        self.pairs[prefix] = (
            a,
            torch.randn(*leading, part.out_features, RANK, generator=self._generator) * 0.3,
        )

    def own(self, prefix: str, part: WeightShard) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's part: A's columns and B's rows."""
        a, b = self.pairs[prefix]
        return part.columns(a, -1), part.rows(b, -2)

    def merged(self, prefix: str, part: WeightShard, weight: torch.Tensor) -> torch.Tensor:
        a, b = self.pairs[prefix]
        return weight + ((b @ a).transpose(-1, -2) if part.transposed else b @ a)


class OnLinear:
    def __init__(self, deltas: Deltas) -> None:
        self.deltas = deltas

    def __call__(self, layer: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        for prefix, rows in layer.prefixes.items():
            if prefix in self.deltas.pairs:
                a, b = self.deltas.own(prefix, layer.parts[prefix])
                out[..., rows] += x @ a.T @ b.T
        return out


class OnEmbedding(OnLinear):
    def __call__(self, layer: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        ((prefix, rows),) = layer.prefixes.items()
        a, b = self.deltas.own(prefix, layer.parts[prefix])
        local = x - layer.first_row
        mine = (local >= 0) & (local < rows.stop)
        out[mine] += b[local[mine]] @ a
        return out


class OnExperts(OnLinear):
    def __call__(
        self,
        layer: Any,
        matrix: str,
        x: torch.Tensor,
        out: torch.Tensor,
        tokens: torch.Tensor,
        experts: torch.Tensor,
    ) -> torch.Tensor:
        assert len(x) == len(out) == len(tokens) == len(experts)
        for prefix, rows in layer.prefixes.items():
            part = layer.parts[prefix]
            if part.matrix != matrix or prefix not in self.deltas.pairs:
                continue
            a, b = self.deltas.own(prefix, part)
            for index in range(part.num_experts) if part.num_experts else [part.expert]:
                mine = experts == index
                pair = (a[index], b[index]) if part.num_experts else (a, b)
                out[mine, rows] += x[mine] @ pair[0].T @ pair[1].T
        return out


KINDS: dict[type, type[OnLinear]] = {
    Linear: OnLinear,
    AdapterSlot: OnLinear,
    Experts: OnExperts,
    Embedding: OnEmbedding,
    Head: OnLinear,
}


def adapt(decoder: Decoder, deltas: Deltas) -> None:
    """Adapt every module that has prefixes, as a plugin would find them."""
    for module in decoder.modules():
        if hasattr(module, "prefixes"):
            module.adapter = KINDS[type(module)](deltas)  # type: ignore[assignment]


@pytest.mark.parametrize(("architecture", "module", "overrides"), CASES)
def test_adapted_layers_equal_merged_weights_on_one_and_two_ranks(
    architecture: str, module: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    folder = make_checkpoint(architecture, tmp_path, seed=3, **overrides)
    tensors = load_file(folder / "model.safetensors")
    spec = find_spec(module)(read_config(folder))

    def built(group: ParallelGroup, weights: dict[str, torch.Tensor]) -> Decoder:
        decoder = Decoder(spec, plain_context(group))
        decoder.load_weights(weights.items())
        return decoder

    deltas = Deltas()
    merged = dict(tensors)
    for layer in built(ParallelGroup(), tensors).modules():
        tied = isinstance(layer, Head) and isinstance(layer.rows, Embedding)
        for prefix in () if tied else getattr(layer, "prefixes", ()):
            part: WeightShard = layer.parts[prefix]  # type: ignore[index,assignment,union-attr]
            name = prefix if part.num_experts else f"{prefix}.weight"
            if name in tensors:
                deltas.add(prefix, part)
                merged[name] = deltas.merged(prefix, part, tensors[name])
    assert (
        sum(name not in merged or merged[name] is not tensor for name, tensor in tensors.items())
        > 8
    )
    tied_head = spec.names.head not in deltas.pairs
    if tied_head:  # an adapter of the shared matrix is one of both of its uses
        deltas.pairs[spec.names.head] = deltas.pairs[spec.names.embed]
    expected = Session(built(ParallelGroup(), merged)).step(IDS)
    assert (expected - Session(built(ParallelGroup(), tensors)).step(IDS)).abs().max() > 0.1
    meeting = Meeting(2)

    def run(group: ParallelGroup) -> torch.Tensor:
        torch.set_num_threads(1)
        decoder = built(group, tensors)
        adapt(decoder, deltas)
        return Session(decoder).step(IDS)

    torch.testing.assert_close(run(ParallelGroup()), expected, atol=2e-4, rtol=0)
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(run, [ThreadGroup(2, rank, meeting) for rank in range(2)]):
            torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)
