"""Tensor and pipeline parallel ranks give the tokens of one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, SamplingParams
from core.errors import ConfigError
from core.model_spec.kv import FullAttention, LayerKV, SlidingWindow
from core.step import WorkerInfo
from core.testing.checkpoints import TINY, make_checkpoint

THREADS = str(Path(__file__).parent / "thread_ranks.py")
SPLITS = {
    "tensor 2": (2, 1),
    "pipeline 2": (1, 2),
    "both": (2, 2),
    "tensor 4": (4, 1),
    "pipeline 3": (1, 3),
}
"""(tensor-parallel ranks, pipeline stages); 4 ranks exceed the KV heads, 3 stages are all
layers.
"""
WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "a budget of 16 tokens": {"max_num_batched_tokens": 16},
    "preemption": {"num_gpu_blocks_override": 31, "block_size": 4, "enable_prefix_caching": False},
}
NUM_GENERATED = 10
LENGTHS = (70, 45, 3)
UNSPLIT = {("Olmo2ForCausalLM", "tensor 4")}
"""Splits without support: KV heads that are normalized together cannot be replicated."""


@dataclass(frozen=True)
class Answer:
    """The output of one request."""

    tokens: list[int]
    logprobs: list[float]
    prompt_logprobs: list[float]


Checkpoint = Callable[..., Path]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Return a function that makes an architecture's tiny checkpoint, once."""
    root = tmp_path_factory.mktemp("checkpoints")

    def folder_of(architecture: str, **overrides: Any) -> Path:
        folder = root / f"{architecture}{len(overrides)}"
        return (
            folder
            if folder.exists()
            else make_checkpoint(architecture, folder, seed=1, **overrides)
        )

    return folder_of


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, 297, (length,), generator=generator).tolist() for length in LENGTHS]


def answers_of(llm: LLM) -> list[Answer]:
    """Return the outputs of two greedy and two seeded requests; the last shares a prompt."""
    common: dict[str, Any] = {
        "max_tokens": NUM_GENERATED,
        "ignore_eos": True,
        "logprobs": 0,
        "prompt_logprobs": 0,
    }
    sampling = [
        SamplingParams(temperature=0, **common),
        SamplingParams(temperature=0, repetition_penalty=1.3, **common),
        SamplingParams(temperature=0.9, seed=3, **common),
        SamplingParams(temperature=1.2, seed=4, top_p=0.9, min_p=0.01, **common),
    ]
    texts = prompts()
    answers = []
    for output in llm.generate([*texts, texts[0]], sampling, use_tqdm=False):
        completion = output.outputs[0]
        tokens = list(completion.token_ids)
        assert completion.logprobs is not None
        assert output.prompt_logprobs is not None
        assert output.prompt_token_ids is not None
        scored = [
            position[token].logprob
            for position, token in zip(completion.logprobs, tokens, strict=True)
        ]
        after = zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True)
        answers.append(
            Answer(
                tokens, scored, [position[token].logprob for position, token in after if position]
            )
        )
    return answers


def open_engine(folder: Path, **settings: Any) -> LLM:
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": 96,
        "kv_cache_memory_bytes": 1 << 22,
    }
    defaults |= {"num_threads": 1, "log_level": "error", "plugins": [THREADS]}
    return LLM(str(folder), **(defaults | settings))


def open_ranks(folder: Path, split: str, **settings: Any) -> LLM:
    tensor, pipeline = SPLITS[split]
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    return open_engine(folder, distributed_executor_backend="threads", **sizes, **settings)


@pytest.fixture(scope="module")
def one_rank(checkpoint: Checkpoint) -> Callable[..., list[Answer]]:
    """Return a function from a checkpoint to what one rank answers, computed once."""
    known: dict[Path, list[Answer]] = {}

    def look_up(folder: Path) -> list[Answer]:
        if folder not in known:
            with open_engine(folder) as llm:
                known[folder] = answers_of(llm)
        return known[folder]

    return look_up


def assert_equal(found: list[Answer], expected: list[Answer]) -> None:
    for answer, reference in zip(found, expected, strict=True):
        assert answer.tokens == reference.tokens
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-3)
        assert answer.prompt_logprobs == pytest.approx(reference.prompt_logprobs, abs=1e-3)


def splits_of_architectures() -> list[Any]:
    """Return every pair; of every second architecture one split is not slow."""
    names = sorted(TINY)
    always = {"LlamaForCausalLM", "MixtralForCausalLM"}
    often = names[::2]
    return [
        pytest.param(
            name,
            split,
            marks=[] if name in always or (name in often and split == "both") else pytest.mark.slow,
        )
        for name in names
        for split in SPLITS
        if (name, split) not in UNSPLIT
    ]


@pytest.mark.parametrize(("architecture", "split"), splits_of_architectures())
def test_parallel_ranks_match_one_rank(
    architecture: str, split: str, checkpoint: Checkpoint, one_rank: Callable[..., list[Answer]]
) -> None:
    folder = checkpoint(architecture)
    with open_ranks(folder, split) as llm:
        assert_equal(answers_of(llm), one_rank(folder))


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=() if settings else pytest.mark.slow)
        for way, settings in WAYS.items()
    ],
)
@pytest.mark.parametrize(
    ("architecture", "split"),
    [
        ("LlamaForCausalLM", "tensor 2"),
        ("LlamaForCausalLM", "pipeline 2"),
        ("MixtralForCausalLM", "both"),
    ],
)
def test_parallel_ranks_match_with_chunks_and_preemption(
    architecture: str,
    split: str,
    way: str,
    checkpoint: Checkpoint,
    one_rank: Callable[..., list[Answer]],
) -> None:
    folder = checkpoint(architecture)
    with open_ranks(folder, split, **WAYS[way]) as llm:
        for _ in range(2):  # the second time, prompts begin in the prefix cache
            assert_equal(answers_of(llm), one_rank(folder))
        if way == "preemption" and architecture == "LlamaForCausalLM":
            assert llm.core.scheduler.num_preemptions > 0


@pytest.mark.parametrize(
    ("architecture", "split"),
    [
        ("BambaForCausalLM", "both"),
        ("BambaForCausalLM", "tensor 4"),
        ("Zamba2ForCausalLM", "tensor 2"),
        ("MambaForCausalLM", "tensor 2"),
        ("Qwen3NextForCausalLM", "both"),
    ],
)
def test_recurrent_states_are_sharded_by_heads(
    architecture: str, split: str, checkpoint: Checkpoint, one_rank: Callable[..., list[Answer]]
) -> None:
    folder = checkpoint(architecture)
    with open_ranks(folder, split, mamba_block_size=16, max_num_batched_tokens=32) as llm:
        for _ in range(2):  # the second time, prompts begin in the prefix cache
            assert_equal(answers_of(llm), one_rank(folder))


def test_rank_counts_not_dividing_state_heads_are_rejected(
    checkpoint: Checkpoint,
) -> None:
    with pytest.raises(
        ConfigError, match="heads of the model's recurrent layers, 6; possible here: 1, 2"
    ):
        open_ranks(checkpoint("KimiLinearForCausalLM"), "tensor 4")


@pytest.mark.parametrize("split", ["tensor 4", "both"])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_indivisible_vocabulary_is_padded(
    architecture: str, split: str, checkpoint: Checkpoint, one_rank: Callable[..., list[Answer]]
) -> None:
    folder = checkpoint(architecture, vocab_size=301)
    with open_ranks(folder, split) as llm:
        assert_equal(answers_of(llm), one_rank(folder))


def test_kv_memory_is_that_of_the_smallest_rank() -> None:
    full = FullAttention(2, 16, "float32")
    window = SlidingWindow(2, 16, "float32", window=8)

    def info(memory: int, *specs: FullAttention) -> WorkerInfo:
        return WorkerInfo(
            layers=[LayerKV("x", spec) for spec in specs],
            kv_memory_bytes=memory,
            vocab_size=9,
            weight_bytes=5,
        )

    both = WorkerInfo.combine([info(100, full), info(90, full)], tensor=2)
    assert (len(both.layers), both.kv_memory_bytes, both.weight_bytes) == (1, 90, 10)
    stages = WorkerInfo.combine([info(200, full, full), info(90, full)], tensor=1)
    assert (len(stages.layers), stages.kv_memory_bytes) == (3, 270)
    unlike = WorkerInfo.combine([info(100, full, full), info(100, window, window)], tensor=1)
    assert (
        unlike.kv_memory_bytes == 100
    )  # one slot serves a layer of each stage, so each needs all slots
