"""Models with `--quantization int8` and `int4`: near plain ones, batch invariant, planned sizes."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from core_kernels.library import load_library

from builtin_plugins.commands.api import memory_plan
from core import LLM, SamplingParams
from core.config.build import config_from_kwargs
from core.errors import ConfigError
from core.plugin import Registry
from core.testing.checkpoints import VOCAB

pytestmark = pytest.mark.skipif(load_library() is None, reason="no C++ library on this machine")


@pytest.fixture(params=["int8", "int4"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def prompts() -> list[list[int]]:
    numbers = random.Random(0)
    return [
        [numbers.randrange(VOCAB - 3) for _ in range(numbers.choice((1, 5, 33)))] for _ in range(9)
    ]


def answers(folder: Path, size: int, **settings: Any) -> list[list[tuple[int, dict[int, float]]]]:
    """Return each request's tokens and logprobs, for a batch size."""
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2)
    defaults: dict[str, Any] = {
        "max_model_len": 96,
        "kv_cache_memory_bytes": 1 << 23,
        "enable_prefix_caching": False,
    }
    found = []
    with LLM(str(folder), log_level="error", num_threads=1, **(defaults | settings)) as llm:
        every = prompts()
        for at in range(0, len(every), size):
            for output in llm.generate(every[at : at + size], params, use_tqdm=False):
                completion = output.outputs[0]
                assert completion.logprobs is not None
                scores = [
                    {token: entry.logprob for token, entry in logprobs.items()}
                    for logprobs in completion.logprobs
                ]
                found.append(list(zip(completion.token_ids, scores, strict=True)))
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MixtralForCausalLM"])
def test_rtn_model_is_near_plain_and_batch_invariant(
    architecture: str, dtype: str, name: str, checkpoint: Callable[[str], Path]
) -> None:
    folder = checkpoint(architecture)
    alone = answers(folder, 1, dtype=dtype, quantization=name)
    assert answers(folder, 9, dtype=dtype, quantization=name) == alone
    plain = answers(folder, 9, dtype=dtype)
    # Before tokens part: the first one's log-probability, where both name it.
    shared = [(own[0][1], other[0][1]) for own, other in zip(alone, plain, strict=True)]
    off = [
        abs(own[token] - other[token]) for own, other in shared for token in own if token in other
    ]
    assert len(off) >= 5
    # The middle one: of these random models some prompts have experts that are chosen by a hair.
    assert 0 < statistics.median(off) < {"int8": 0.06, "int4": 0.6}[name]


def test_plan_counts_rtn_weight_bytes(
    name: str, checkpoint: Callable[[str], Path], registry: Registry
) -> None:
    def planned(**settings: Any) -> int:
        options = registry.options()
        config = config_from_kwargs(
            {
                "model": str(checkpoint("LlamaForCausalLM")),
                "dtype": "bfloat16",
                "max_model_len": 64,
                **settings,
            },
            options,
        )
        return sum(memory_plan(config, registry).weight_bytes)

    small = planned(quantization=name)
    smaller = planned(quantization=name, quantization_group=128)
    assert small / planned() < {"int8": 0.65, "int4": 0.5}[name]
    assert smaller <= small


def test_invalid_rtn_group_size_is_rejected(registry: Registry) -> None:
    with pytest.raises(ConfigError, match="expected one of"):
        config_from_kwargs({"model": "x", "quantization_group": 48}, registry.options())
