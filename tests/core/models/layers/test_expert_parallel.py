"""Expert parallelism: ranks with whole experts equal one rank, and load only their own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from core.errors import ConfigError
from core.model_spec.layer import MoeSpec
from core.model_spec.parallel import ParallelGroup
from core.models.layers.decoder import Decoder
from core.models.layers.experts import Experts
from core.testing.checkpoints import make_checkpoint
from core.testing.one_sequence import Session, plain_context, read_config
from tests.core.models.layers.test_tensor_parallel import Meeting, ThreadGroup, find_spec

IDS = list(range(100, 130))


def build(module: str, folder: Path, group: ParallelGroup, placement: str) -> Decoder:
    spec = find_spec(module)(read_config(folder)).with_expert_placement(placement)
    decoder = Decoder(spec, plain_context(group))
    decoder.load_weights(load_file(folder / "model.safetensors").items())
    return decoder


@pytest.mark.parametrize(
    ("experts", "ranks", "placement", "expected"),
    [
        (8, 2, "linear", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (5, 3, "linear", [[0, 1], [2, 3], [4]]),
        (5, 3, "round_robin", [[0, 3], [1, 4], [2]]),
        (3, 2, "", [[0, 1, 2], [0, 1, 2]]),
    ],
)
def test_experts_of_each_rank(
    experts: int, ranks: int, placement: Any, expected: list[list[int]]
) -> None:
    spec = MoeSpec(experts=experts, top_k=1, width=8, placement=placement)
    assert [list(spec.experts_of(rank, ranks)) for rank in range(ranks)] == expected


@pytest.mark.parametrize(
    ("architecture", "module", "size", "placement", "overrides"),
    [
        ("Qwen3MoeForCausalLM", "qwen_moe:qwen3_moe", 2, "linear", {}),
        ("Qwen3MoeForCausalLM", "qwen_moe:qwen3_moe", 2, "round_robin", {"num_experts": 5}),
        # a width that ranks do not divide
        ("Qwen3MoeForCausalLM", "qwen_moe:qwen3_moe", 2, "linear", {"moe_intermediate_size": 33}),
        ("Qwen2MoeForCausalLM", "qwen_moe:qwen2_moe", 2, "linear", {}),  # a shared expert
        ("GptOssForCausalLM", "gpt_oss:spec", 2, "round_robin", {}),  # biases
        ("DeepseekV3ForCausalLM", "deepseek:v3", 2, "linear", {}),
    ],
)
def test_ranks_with_whole_experts_match_one_rank(
    tmp_path: Path,
    architecture: str,
    module: str,
    size: int,
    placement: str,
    overrides: dict[str, Any],
) -> None:
    folder = make_checkpoint(architecture, tmp_path, seed=3, **overrides)
    expected = Session(build(module, folder, ParallelGroup(), "")).step(IDS)
    meeting = Meeting(size)

    def run(rank: int) -> torch.Tensor:
        torch.set_num_threads(1)
        return Session(build(module, folder, ThreadGroup(size, rank, meeting), placement)).step(IDS)

    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(run, range(size)))
    for log_probabilities in found:
        torch.testing.assert_close(log_probabilities, expected, atol=1e-4, rtol=1e-5)


def test_rank_holds_its_experts_and_reads_no_others(tmp_path: Path) -> None:
    folder = make_checkpoint("Qwen3MoeForCausalLM", tmp_path, num_experts=5)
    group = ParallelGroup(2, 1)
    decoder = build("qwen_moe:qwen3_moe", folder, group, "linear")
    layers = [module for module in decoder.modules() if isinstance(module, Experts)]
    assert [len(layer.down) for layer in layers] == [2] * len(layers)
    layers[0].get_buffer("expert_map").zero_()  # as if its memory had been released
    decoder.load_weights(load_file(folder / "model.safetensors").items())
    assert layers[0].get_buffer("expert_map").tolist() == [2, 2, 2, 0, 1]
    reads = decoder.weights.reads
    prefix = "model.layers.0.mlp"
    read = [reads(f"{prefix}.experts.{index}.up_proj.weight") for index in range(5)]
    assert read == [False, False, False, True, True]
    assert reads(f"{prefix}.gate.weight")
    assert reads("unknown")  # so that it is reported


def test_missing_expert_of_another_rank_is_reported(tmp_path: Path) -> None:
    folder = make_checkpoint("Qwen3MoeForCausalLM", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.mlp.experts.0.up_proj.weight"]
    spec = find_spec("qwen_moe:qwen3_moe")(read_config(folder)).with_expert_placement("linear")
    decoder = Decoder(spec, plain_context(ParallelGroup(2, 1)))
    with pytest.raises(Exception, match=r"missing tensors: model\.layers\.0\.mlp\.experts\.0\.up"):
        decoder.load_weights(tensors.items())


def test_more_ranks_than_experts_are_refused(tmp_path: Path) -> None:
    folder = make_checkpoint("Qwen3MoeForCausalLM", tmp_path, num_experts=3)
    spec = find_spec("qwen_moe:qwen3_moe")(read_config(folder)).with_expert_placement("linear")
    spec.check_split(2, 1)
    with pytest.raises(ConfigError, match=r"4 is more than a layer's 3 experts; possible here"):
        spec.check_split(4, 1)
