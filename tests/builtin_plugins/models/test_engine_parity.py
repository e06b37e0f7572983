"""The engine equals transformers for every way of running a request."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, RequestOutput, SamplingParams
from core.errors import InvalidRequest
from core.testing.checkpoints import ARCHITECTURES, TINY, VOCAB
from core.testing.one_sequence import read_config
from core.testing.published.catalog import PUBLISHED
from core.testing.tiny_encoder_decoders import DECODERS_ALONE

LENGTHS = (70, 45, 91, 3)
"""Longer than every window (24 and 40), and one that is not."""
NUM_GENERATED = 10
TOLERANCE = 1e-3
GAP = 1e-3
"""Least distance between the two best logits anywhere on a path; closer ones could not be compared.
"""


THREADS = str(Path(__file__).parents[1] / "executors" / "thread_ranks.py")
NAMES = sorted({*ARCHITECTURES, *PUBLISHED, *DECODERS_ALONE})
EVERY = [pytest.param(name, marks=[] if name in TINY else pytest.mark.slow) for name in NAMES]
"""Architectures of every run; the others under `make test-all` only."""
EACH_KIND = {"LlamaForCausalLM", "Gemma3ForCausalLM", "MixtralForCausalLM"}
"""Full attention, windows, experts: in every run in all ways."""
LAYOUTS = (
    "BaichuanForCausalLM",
    "BailingMoeForCausalLM",
    "DeciLMForCausalLM",
    "InternLM2ForCausalLM",
    "TeleChat2ForCausalLM",
)
"""Of the published layouts, one per way in which a checkpoint differs from the reference."""
CHUNKED = {*sorted(ARCHITECTURES)[::2], *LAYOUTS}
"""Architectures with chunked prefill in every run; test_architectures.py computes all in chunks."""
SEVERAL_POOLS = (
    ("DeepseekV4ForCausalLM", 4),
    ("DeepseekV4ForCausalLM", 16),
    ("MistralLarge4ForCausalLM", 4),
    ("MistralLarge4ForCausalLM", 16),
    ("ZayaForCausalLM", 16),
)
"""One request would need more than all blocks; test_sparse_models.py preempts the first two."""


@dataclass(frozen=True)
class Expected:
    """transformers' results of one prompt."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    """Of the generated tokens."""
    prompt_logprobs: list[float]
    """Of the prompt's tokens from the second on."""


@torch.inference_mode()
def expect(model: Any, length: int, *, repeats: bool = False) -> Expected:
    """Draw prompts until one has no near ties; return it with transformers' results.

    With `repeats`, the second half of a prompt is the first one again.
    """
    for seed in range(100):
        generator = torch.Generator().manual_seed(1000 * seed + length)
        drawn = -(-length // 2) if repeats else length
        prompt = torch.randint(0, VOCAB - 3, (drawn,), generator=generator).tolist()
        prompt = (prompt * 2)[:length]
        of_prompt = model(torch.tensor([prompt]), use_cache=False).logits[0]
        logits = of_prompt[-1]
        tokens = list(prompt)
        logprobs: list[float] = []
        while (best := logits.topk(2).values)[0] - best[1] >= GAP:
            tokens.append(int(logits.argmax()))
            logprobs.append(float(logits.log_softmax(-1)[tokens[-1]]))
            if len(logprobs) == NUM_GENERATED:
                given = of_prompt[:-1].log_softmax(-1).gather(1, torch.tensor(prompt[1:])[:, None])
                return Expected(prompt, tokens[length:], logprobs, given[:, 0].tolist())
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
    raise AssertionError("no prompt without a tie was found")


@pytest.fixture(scope="module")
def expected(
    checkpoint: Callable[[str], Path], by_transformers: Callable[[Path], Any]
) -> Callable[[str], list[Expected]]:
    """Return a function from architecture to transformers' results, computed once."""
    known: dict[str, list[Expected]] = {}

    def look_up(architecture: str) -> list[Expected]:
        if architecture not in known:
            folder = checkpoint(architecture)
            model = by_transformers(folder)
            known[architecture] = [expect(model, length) for length in LENGTHS]
        return known[architecture]

    return look_up


def open_engine(folder: Path, **settings: Any) -> LLM:
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": 128,
        "kv_cache_memory_bytes": 1 << 23,
    }
    defaults |= {"num_threads": 1, "log_level": "error", "mamba_block_size": 16}
    return LLM(str(folder), **(defaults | settings))


def run(llm: LLM, cases: Sequence[Expected]) -> list[RequestOutput]:
    params = SamplingParams(temperature=0, max_tokens=NUM_GENERATED, ignore_eos=True, logprobs=0)
    return llm.generate([case.prompt for case in cases], params, use_tqdm=False)


def assert_equal(outputs: Sequence[RequestOutput], cases: Sequence[Expected]) -> None:
    for output, case in zip(outputs, cases, strict=True):
        completion = output.outputs[0]
        assert list(completion.token_ids) == case.tokens
        assert completion.logprobs is not None
        found = [
            position[token].logprob
            for position, token in zip(completion.logprobs, case.tokens, strict=True)
        ]
        assert found == pytest.approx(case.logprobs, abs=TOLERANCE)


def test_forced_instruction_sets_match_transformers(
    forced_isa: str,
    checkpoint: Callable[[str], Path],
    expected: Callable[[str], list[Expected]],
) -> None:
    del forced_isa
    cases = expected("Qwen3ForCausalLM")
    with open_engine(checkpoint("Qwen3ForCausalLM")) as llm:
        assert_equal(run(llm, cases), cases)


DRAFTS = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 1,
    "adaptive": False,
}
WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "one by one": {"max_num_seqs": 1},
    "a budget of 16 tokens": {"max_num_batched_tokens": 16},
    "blocks of 4": {"block_size": 4},
    "reference attention": {"attention_backend": "reference"},
    "async scheduling": {"async_scheduling": True},
    "drafts": {"speculative_config": DRAFTS},
    "drafts at depth 2": {"speculative_config": DRAFTS, "async_scheduling": True},
    "2 ranks": {
        "plugins": [THREADS],
        "distributed_executor_backend": "threads",
        "tensor_parallel_size": 2,
    },
}


COMBINED = ("one by one", "drafts", "2 ranks")
"""Ways that others contain, or that other files have for each kind of layers."""


def ways_of_architectures() -> list[Any]:
    """Return every pair; some only run with all tests."""
    return [
        pytest.param(
            name,
            way,
            marks=[]
            if (name in EACH_KIND and way not in COMBINED)
            or (way == "batched" and name in TINY)
            or (way == "a budget of 16 tokens" and name in CHUNKED)
            else pytest.mark.slow,
        )
        for name in NAMES
        for way in WAYS
    ]


@pytest.mark.parametrize(("architecture", "way"), ways_of_architectures())
def test_engine_equals_transformers(
    architecture: str,
    way: str,
    checkpoint: Callable[[str], Path],
    expected: Callable[[str], list[Expected]],
) -> None:
    cases = expected(architecture)
    with open_engine(checkpoint(architecture), **WAYS[way]) as llm:
        assert_equal(run(llm, cases), cases)


@pytest.mark.parametrize("architecture", EVERY)
def test_prefix_cache_hits_equal_transformers(
    architecture: str, checkpoint: Callable[[str], Path], expected: Callable[[str], list[Expected]]
) -> None:
    cases = expected(architecture)
    with open_engine(checkpoint(architecture)) as llm:
        for case in cases:
            assert_equal(run(llm, [case]), [case])
        warm = run(llm, cases)
        assert_equal(warm, cases)
        assert [output.num_cached_tokens for output in warm] == [
            (len(c.prompt) - 1) // 16 * 16 for c in cases
        ]


@pytest.mark.parametrize(
    ("architecture", "block_size"),
    [
        pytest.param(
            name,
            size,
            marks=[]
            if name == "LlamaForCausalLM" or (name in EACH_KIND and size == 16)
            else pytest.mark.slow,
        )
        for name in NAMES
        for size in (4, 16)
        if (name, size) not in SEVERAL_POOLS
    ],
)
def test_preempted_requests_equal_transformers(
    architecture: str,
    block_size: int,
    checkpoint: Callable[[str], Path],
    expected: Callable[[str], list[Expected]],
    spec_of: Callable[[str, Any], Any],
) -> None:
    cases = [expected(architecture)[2]] * 4
    settings = {
        "block_size": block_size,
        "max_num_batched_tokens": 32,
        "enable_prefix_caching": False,
    }
    preemptions = 0
    for num_tokens in (
        368,
        384,
        400,
        416,
        448,
    ):  # some of these hold several prompts but not their outputs
        blocks = num_tokens // block_size
        with open_engine(
            checkpoint(architecture), **settings, num_gpu_blocks_override=blocks
        ) as llm:
            assert_equal(run(llm, cases), cases)
            preemptions += llm.core.scheduler.num_preemptions
    layers = spec_of(architecture, read_config(checkpoint(architecture))).layers
    growing = [layer.attention for layer in layers if layer.attention is not None]
    # Windowed layers give back more after the prompt than the output takes, and states take nothing
    # more.
    local = (
        getattr(attention, "window", None) or getattr(attention, "chunk", None)
        for attention in growing
    )
    if growing and not any(local):
        assert preemptions > 0


def test_model_without_tokenizer_serves_token_ids(
    tmp_path: Path, checkpoint: Callable[[str], Path], expected: Callable[[str], list[Expected]]
) -> None:
    folder = tmp_path / "model"
    case = expected("Olmo2ForCausalLM")[0]
    shutil.copytree(
        checkpoint("Olmo2ForCausalLM"), folder, ignore=shutil.ignore_patterns("*token*")
    )
    with open_engine(folder) as llm:
        assert_equal(run(llm, [case]), [case])
        with pytest.raises(InvalidRequest, match="there is no tokenizer"):
            llm.generate("hello", use_tqdm=False)


@pytest.mark.parametrize("budget", [16, 256])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Gemma3ForCausalLM"])
def test_chunked_prompt_logprobs_equal_transformers(
    architecture: str,
    budget: int,
    checkpoint: Callable[[str], Path],
    expected: Callable[[str], list[Expected]],
) -> None:
    case = expected(architecture)[0]
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    with open_engine(checkpoint(architecture), max_num_batched_tokens=budget) as llm:
        for _ in range(2):  # the second time the prefix cache is warm, and must not be read
            output = llm.generate([case.prompt], params, use_tqdm=False)[0]
            assert output.prompt_logprobs is not None
            assert output.prompt_logprobs[0] is None
            found = [
                position[token].logprob
                for position, token in zip(output.prompt_logprobs[1:], case.prompt[1:], strict=True)
                if position is not None
            ]
            assert found == pytest.approx(case.prompt_logprobs, abs=TOLERANCE)
