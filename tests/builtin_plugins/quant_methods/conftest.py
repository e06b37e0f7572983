"""Fixtures of the quantization tests: unpacking in small chunks, and the check of a whole model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.quant_methods.stored import formats
from core.model_spec.quant_method import QuantMethod
from tests.builtin_plugins.quant_methods.writers.model import (
    Writer,
    assert_close,
    is_linear,
    logprobs,
    logprobs_tp2,
    plain_tensors,
    quantize,
)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpack tiny weights in several chunks, like large ones."""
    monkeypatch.setattr(formats, "MAX_CHUNK_NUMBERS", 1)
    monkeypatch.setattr(formats, "MIN_CHUNK_ROWS", 16)


@pytest.fixture
def check_model(tmp_path: Path) -> Callable[..., None]:
    """Return a check that a quantized model computes the same as its dequantized weights."""

    def check(
        write: Writer,
        method: Callable[[], QuantMethod],
        architecture: str = "LlamaForCausalLM",
        *,
        which: Callable[[str], bool] = is_linear,
        ranks: tuple[int, ...] = (1,),
        plain: QuantMethod | None = None,
        **overrides: Any,
    ) -> None:
        tensors = plain_tensors(architecture, tmp_path, **overrides)
        stored, dequantized = quantize(tensors, write, which)
        expected = logprobs(architecture, tmp_path, dequantized)
        if 1 in ranks:
            found = logprobs(architecture, tmp_path, stored, method(), plain=plain)
            assert_close(found, expected)
        if 2 in ranks:
            assert_close(logprobs_tp2(architecture, tmp_path, stored, method), expected)

    return check
