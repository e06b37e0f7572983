"""Tokens and logprobs are bitwise equal alone, in any batch, and with any prefill chunks."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from core_kernels.library import load_library

from core import LLM, SamplingParams
from core.testing.checkpoints import ARCHITECTURES, VOCAB
from core.testing.published.catalog import PUBLISHED
from core.testing.tiny_encoder_decoders import DECODERS_ALONE
from core.testing.tiny_linear import LINEAR
from core.testing.tiny_recurrent import RECURRENT

NUM_PROMPTS = 21
SIZES = (2, 4, 8, NUM_PROMPTS)
LENGTHS = (1, 5, 16, 33, 60)
"""Of prompts: less than a block, whole blocks, longer than windows (24 and 40)."""
FAMILIES = ["LlamaForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM", "MixtralForCausalLM"]
OTHERS = ["Gemma2ForCausalLM", "GptOssForCausalLM", "MistralForCausalLM", "Qwen3MoeForCausalLM"]
Answer = list[tuple[int, list[tuple[int, float]]]]
STATEFUL = {*LINEAR, *RECURRENT} - {"Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "Lfm3ForCausalLM"}
"""Architectures with recurrent layers: their scans depend on the length of a chunk."""
PLAIN_PRODUCTS = {
    "DeepseekV4ForCausalLM",
    "Inkling2ForCausalLM",
    "InklingForCausalLM",
}
"""Architectures with attention by torch's own products: compressed keys, relative biases."""
STATELESS = sorted(
    {*ARCHITECTURES, *PUBLISHED, *DECODERS_ALONE}
    - STATEFUL
    - PLAIN_PRODUCTS
    - {*FAMILIES, *OTHERS, "Plamo2ForCausalLM"}  # Plamo 2 has Mamba layers
)

pytestmark = pytest.mark.skipif(load_library() is None, reason="no C++ library on this machine")


def prompts() -> list[list[int]]:
    numbers = random.Random(0)
    return [
        [numbers.randrange(VOCAB - 3) for _ in range(numbers.choice(LENGTHS))]
        for _ in range(NUM_PROMPTS)
    ]


def open_engine(folder: Path, dtype: str, **settings: Any) -> LLM:
    defaults: dict[str, Any] = {
        "max_model_len": 96,
        "kv_cache_memory_bytes": 1 << 23,
        "num_threads": 2,
    }
    return LLM(str(folder), dtype=dtype, log_level="error", **(defaults | settings))


def answers(llm: LLM, size: int) -> list[Answer]:
    """Return each request's tokens and logprobs, for a batch size."""
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2)
    found: list[Answer] = []
    every = prompts()
    for at in range(0, NUM_PROMPTS, size):
        for output in llm.generate(every[at : at + size], params, use_tqdm=False):
            completion = output.outputs[0]
            assert completion.logprobs is not None
            scores = [
                [(token, entry.logprob) for token, entry in logprobs.items()]
                for logprobs in completion.logprobs
            ]
            found.append(list(zip(completion.token_ids, scores, strict=True)))
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "architecture", FAMILIES + [pytest.param(name, marks=pytest.mark.slow) for name in OTHERS]
)
def test_results_are_bitwise_batch_invariant(
    architecture: str, dtype: str, checkpoint: Callable[[str], Path]
) -> None:
    folder = checkpoint(architecture)
    with open_engine(folder, dtype, enable_prefix_caching=False) as llm:
        alone = answers(llm, 1)
        for size in SIZES:
            assert answers(llm, size) == alone, f"in batches of {size}"
    with open_engine(
        folder, dtype, max_num_batched_tokens=24, max_num_seqs=8
    ) as llm:  # chunks, and a warm prefix cache
        assert answers(llm, NUM_PROMPTS) == alone
        assert answers(llm, NUM_PROMPTS) == alone


@pytest.mark.slow
@pytest.mark.parametrize("architecture", STATELESS)
def test_decoders_without_recurrent_layers_are_bitwise_batch_invariant(
    architecture: str, checkpoint: Callable[[str], Path]
) -> None:
    folder = checkpoint(architecture)
    with open_engine(folder, "float32", enable_prefix_caching=False) as llm:
        alone = answers(llm, 1)
        for size in (4, NUM_PROMPTS):
            assert answers(llm, size) == alone, f"in batches of {size}"
    with open_engine(folder, "float32", max_num_batched_tokens=24, max_num_seqs=8) as llm:
        assert answers(llm, NUM_PROMPTS) == alone, "in chunks"


@pytest.mark.parametrize(
    "settings",
    [{"dtype": "bfloat16"}, {"dtype": "float16", "kv_cache_dtype": "int8"}],
    ids=lambda settings: settings["dtype"],
)
def test_forced_instruction_sets_are_bitwise_batch_invariant(
    forced_isa: str, settings: dict[str, str], checkpoint: Callable[[str], Path]
) -> None:
    with open_engine(
        checkpoint("Qwen3ForCausalLM"), enable_prefix_caching=False, **settings
    ) as llm:
        alone = answers(llm, 1)
        for size in (4, NUM_PROMPTS):
            assert answers(llm, size) == alone, f"in batches of {size} on {forced_isa}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_preempted_results_are_bitwise_equal(dtype: str, checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("LlamaForCausalLM")
    with open_engine(folder, dtype) as llm:
        alone = answers(llm, 1)
    with open_engine(folder, dtype, num_gpu_blocks_override=16) as llm:
        assert answers(llm, NUM_PROMPTS) == alone
        assert llm.core.scheduler.num_preemptions > 0


def test_amx_results_are_batch_invariant_and_near_avx(
    checkpoint: Callable[[str], Path],
) -> None:
    """Prompts and batches are multiplied in tile registers (AMX, emulated here), single rows are
    not.
    """
    library = load_library()
    assert library is not None
    folder = checkpoint("Qwen3ForCausalLM")
    best = library.core_kernels_isa()
    with open_engine(folder, "bfloat16") as llm:
        plain = answers(llm, 1)
    if not library.core_kernels_use(b"amx_emulated"):
        pytest.skip(
            "this machine lacks what surrounds tile registers (AVX-512 with bfloat16 and VNNI), or "
            "the library was built without amx_emulated (`make test` builds it)"
        )
    try:
        with open_engine(folder, "bfloat16", enable_prefix_caching=False) as llm:
            alone = answers(llm, 1)
            for size in (8, NUM_PROMPTS):
                assert answers(llm, size) == alone, f"in batches of {size}"
    finally:
        library.core_kernels_use(best)
    first = [answer[0][1][0] for answer in alone], [answer[0][1][0] for answer in plain]
    assert [token for token, _ in first[0]] == [token for token, _ in first[1]]
    for (_, score), (_, other) in zip(*first, strict=True):
        assert score == pytest.approx(other, abs=2e-2)
