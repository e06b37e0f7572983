"""Tensor-parallel ranks equal one rank."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from core.errors import ModelError
from core.model_spec.parallel import ParallelGroup
from core.models.layers.decoder import Decoder
from core.plugin import load_plan, make_plan
from core.testing.checkpoints import ARCHITECTURES, TINY, make_checkpoint
from core.testing.one_sequence import Session, plain_context, read_config
from core.testing.published.catalog import PUBLISHED
from tests.timeouts import TIMEOUT_S

REGISTRY = load_plan(make_plan([]))


class Meeting:
    """Where the threads of one group exchange tensors."""

    def __init__(self, size: int) -> None:
        self.barrier = Barrier(size)
        self.table: list[torch.Tensor] = [torch.empty(0)] * size


class ThreadGroup(ParallelGroup):
    """Ranks as threads."""

    def __init__(self, size: int, rank: int, meeting: Meeting) -> None:
        super().__init__(size, rank)
        self._meeting = meeting

    def _exchange(self, x: torch.Tensor) -> list[torch.Tensor]:
        self._meeting.table[self.rank] = x.clone()
        self._meeting.barrier.wait(TIMEOUT_S)
        found = list(self._meeting.table)
        self._meeting.barrier.wait(TIMEOUT_S)
        return found

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._exchange(x)).sum(0)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._exchange(x), -1)


def find_spec(where: str) -> Callable[[Any], Any]:
    """Return the function that reads a config, from its module and name."""
    module, _, name = where.partition(":")
    found: Callable[[Any], Any] = getattr(
        importlib.import_module(f"builtin_plugins.models.{module}"), name
    )
    return found


def build(module: str, folder: Path, group: ParallelGroup) -> Decoder:
    spec = find_spec(module)
    decoder = Decoder(spec(read_config(folder)), plain_context(group))
    decoder.load_weights(load_file(folder / "model.safetensors").items())
    return decoder


@pytest.mark.parametrize(
    ("architecture", "module", "size", "overrides"),
    [
        ("LlamaForCausalLM", "llama:spec", 2, {}),
        (
            "Qwen3ForCausalLM",
            "qwen:qwen3",
            4,
            {"vocab_size": 301},
        ),  # copies of key-value heads; a vocabulary that is odd
        ("Olmo2ForCausalLM", "olmo:olmo2", 2, {}),
        ("GPT2LMHeadModel", "gpt2:spec", 2, {}),
        ("GPTNeoXForCausalLM", "gpt_like:gpt_neox", 2, {}),
        ("Phi3ForCausalLM", "phi3:phi3", 2, {}),
        ("Qwen3MoeForCausalLM", "qwen_moe:qwen3_moe", 2, {}),
        ("BambaForCausalLM", "hybrids:bamba", 2, {}),
        (
            "BambaForCausalLM",
            "hybrids:bamba",
            4,
            {},
        ),  # copies of groups, and a norm over more than a rank's heads
        (
            "FalconH1ForCausalLM",
            "hybrids:falcon_h1",
            2,
            {"mamba_n_groups": 1, "mamba_norm_before_gate": True},
        ),
        ("Zamba2ForCausalLM", "zamba2:spec", 2, {}),
        ("JambaForCausalLM", "hybrids:jamba", 4, {}),
        ("KimiLinearForCausalLM", "kimi_linear:spec", 2, {}),
        ("MiniMaxForCausalLM", "minimax:spec", 2, {}),
        ("RecurrentGemmaForCausalLM", "recurrent_gemma:spec", 2, {}),
        ("DeepseekV4ForCausalLM", "deepseek_v4:deepseek", 2, {}),
        ("HYV4ForCausalLM", "deepseek_v4:hunyuan", 2, {}),
        ("ZayaForCausalLM", "zaya:spec", 2, {}),
        ("ZayaForCausalLM", "zaya:spec", 4, {}),  # copies of key-value heads
        ("InklingForCausalLM", "inkling:inkling", 2, {}),
        ("Inkling2ForCausalLM", "inkling:inkling2", 2, {}),
        ("Plamo2ForCausalLM", "plamo:plamo2", 2, {}),
        ("Step3TextForCausalLM", "softmax_moe:step3", 2, {}),
    ],
)
def test_tp_and_pp_layers_match_one_rank(
    tmp_path: Path, architecture: str, module: str, size: int, overrides: dict[str, Any]
) -> None:
    folder = make_checkpoint(architecture, tmp_path, seed=3, **overrides)
    ids = list(range(100, 130))
    expected = Session(build(module, folder, ParallelGroup())).step(ids)
    meeting = Meeting(size)

    def run(rank: int) -> torch.Tensor:
        torch.set_num_threads(1)
        return Session(build(module, folder, ThreadGroup(size, rank, meeting))).step(ids)

    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(run, range(size)))
    for log_probabilities in found:
        torch.testing.assert_close(log_probabilities, expected, atol=1e-4, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", sorted({*ARCHITECTURES, *PUBLISHED} - set(TINY)))
def test_tp2_matches_tp1_for_every_architecture(tmp_path: Path, architecture: str) -> None:
    known = {entry.entry.name: entry for entry in REGISTRY.entries("models")}
    folder = make_checkpoint(architecture, tmp_path, seed=3)
    spec = REGISTRY.load(known[architecture])(read_config(folder))
    ids = list(range(100, 130))
    meeting = Meeting(2)

    def run(group: ParallelGroup) -> torch.Tensor:
        torch.set_num_threads(1)
        decoder = Decoder(spec, plain_context(group))
        decoder.load_weights(load_file(folder / "model.safetensors").items())
        return Session(decoder).step(ids)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, [ThreadGroup(2, rank, meeting) for rank in range(2)]))
    # DBRX's tiny form magnifies rounding: transformers in float32 is 1.6e-3 away from itself in
    # float64.
    for log_probabilities in found:
        torch.testing.assert_close(log_probabilities, run(ParallelGroup()), atol=2e-3, rtol=0)


def test_indivisible_rank_count_is_rejected(tmp_path: Path) -> None:
    folder = make_checkpoint("LlamaForCausalLM", tmp_path)
    with pytest.raises(
        ModelError, match=r"expected a multiple of 3 ranks|got 3; expected a divisor"
    ):
        build("llama:spec", folder, ThreadGroup(3, 0, Meeting(3)))
