"""MXFP4 experts of gpt-oss checkpoints match transformers' dequantization."""

from __future__ import annotations

from pathlib import Path

import pytest
from core_kernels.library import load_library

from builtin_plugins.quant_methods.cpu_packed.method import make_method
from core.errors import ModelError
from tests.builtin_plugins.quant_methods.writers.model import (
    assert_close,
    logprobs,
    logprobs_tp2,
    plain_tensors,
)
from tests.builtin_plugins.quant_methods.writers.mxfp4 import GPT_OSS, method, quantize


@pytest.mark.skipif(load_library() is None, reason="no C++ library on this machine")
def test_kernels_match_transformers_dequantization(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored, plain = quantize(plain_tensors(GPT_OSS, tmp_path))
    expected = logprobs(GPT_OSS, tmp_path, plain)
    assert_close(logprobs(GPT_OSS, tmp_path, stored, method(), plain=make_method()), expected)
    assert "no kernel of this device" not in caplog.text
    assert_close(logprobs(GPT_OSS, tmp_path, stored, method()), expected)
    assert "mxfp4: no kernel of this device multiplies by" in caplog.text


def test_tp2_matches_tp1(tmp_path: Path) -> None:
    stored, plain = quantize(plain_tensors(GPT_OSS, tmp_path, intermediate_size=64))
    assert_close(
        logprobs_tp2(GPT_OSS, tmp_path, stored, method), logprobs(GPT_OSS, tmp_path, plain)
    )


def test_blocks_without_scales_are_rejected(tmp_path: Path) -> None:
    stored, _ = quantize(plain_tensors(GPT_OSS, tmp_path))
    alone = {
        name: tensor for name, tensor in stored.items() if not name.endswith("down_proj_scales")
    }
    with pytest.raises(ModelError, match=r"down.* came alone|down_proj_scales"):
        logprobs(GPT_OSS, tmp_path, alone, method())
