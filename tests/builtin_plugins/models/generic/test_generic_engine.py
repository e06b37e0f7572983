"""The engine on transformers' own modules equals transformers for every way of running a
request.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.errors import ConfigError
from tests.builtin_plugins.models.test_engine_parity import (
    Expected,
    assert_equal,
    expect,
    open_engine,
    run,
)

MODELS = ("beam", "deepseek_v2", "doge", "gemma2", "gpt_oss")
"""Windows and full attention, values shorter than keys, biases of keys, softcaps, sinks."""

Cases = Callable[[str], list[Expected]]


@pytest.fixture(scope="module")
def expected(checkpoint: Callable[[str], Path], by_transformers: Callable[[Path], Any]) -> Cases:
    known: dict[str, list[Expected]] = {}

    def look_up(model_type: str) -> list[Expected]:
        if model_type not in known:
            model = by_transformers(checkpoint(model_type))
            known[model_type] = [expect(model, length) for length in (70, 45, 91, 3)]
        return known[model_type]

    return look_up


def open_generic(folder: Path, **settings: Any) -> Any:
    return open_engine(folder, model_impl="transformers", **settings)


@pytest.mark.parametrize("model_type", MODELS)
def test_generic_model_with_chunked_prefill_and_prefix_cache(
    model_type: str, checkpoint: Callable[[str], Path], expected: Cases
) -> None:
    cases = expected(model_type)
    with open_generic(checkpoint(model_type), max_num_batched_tokens=16) as llm:
        assert_equal(run(llm, cases), cases)
        warm = run(llm, cases)
        assert_equal(warm, cases)
        assert [output.num_cached_tokens for output in warm] == [
            (len(c.prompt) - 1) // 16 * 16 for c in cases
        ]


@pytest.mark.parametrize(
    "model_type", [pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_generic_model_is_invariant_to_batching(
    model_type: str, checkpoint: Callable[[str], Path], expected: Cases
) -> None:
    cases = expected(model_type)
    for settings in (
        {},
        {"async_scheduling": True},
        {"attention_backend": "reference", "block_size": 4},
    ):
        with open_generic(checkpoint(model_type), **settings) as llm:
            assert_equal(run(llm, cases), cases)
            for case in cases:
                assert_equal(run(llm, [case]), [case])


@pytest.mark.parametrize(
    "model_type",
    [
        "deepseek_v2",
        *(pytest.param(n, marks=pytest.mark.slow) for n in MODELS if n != "deepseek_v2"),
    ],
)
def test_generic_model_survives_preemption(
    model_type: str, checkpoint: Callable[[str], Path], expected: Cases
) -> None:
    cases = [expected(model_type)[2]] * 4
    settings = {"block_size": 4, "max_num_batched_tokens": 32, "enable_prefix_caching": False}
    preemptions = 0
    for num_blocks in (
        92,
        96,
        100,
        104,
        112,
    ):  # some of these hold several prompts but not their outputs
        with open_generic(
            checkpoint(model_type), **settings, num_gpu_blocks_override=num_blocks
        ) as llm:
            assert_equal(run(llm, cases), cases)
            preemptions += llm.core.scheduler.num_preemptions
    assert (
        preemptions > 0 or model_type != "deepseek_v2"
    )  # windows give back more than the output takes


def test_context_ends_where_keys_would_be_dropped(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "doge"
    shutil.copytree(checkpoint("doge"), folder)
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stated | {"keep_window_size": 64}))
    with pytest.raises(ConfigError, match="--max-model-len 128 is more than 64, keep_window_size"):
        open_engine(folder, max_model_len=128)
    with open_engine(folder, max_model_len=None) as llm:
        assert llm.config.model.max_model_len == 64
