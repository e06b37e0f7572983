"""Stored scales of activations that no layer uses are named in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from builtin_plugins.quant_methods.fp8.method import Fp8
from builtin_plugins.quant_methods.quark.method import Quark

METHODS: list[Any] = [Quark, Fp8, CompressedTensors]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["k_proj.output_scale", "q_proj.input_scale"])
def test_unused_scales_are_named_once(
    method: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    dtypes = {f"model.layers.{i}.self_attn.{name}": torch.float32 for i in range(3)}
    with caplog.at_level(logging.WARNING):
        method(method.example_config).set_checkpoint_dtypes(dtypes)
    (line,) = [record.getMessage() for record in caplog.records]
    assert (
        f"3 stored scales of activations and outputs (such as model.layers.0.self_attn.{name})"
        in (line)
    )


@pytest.mark.parametrize("method", METHODS)
def test_other_tensors_are_not_named(method: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        method(method.example_config).set_checkpoint_dtypes({"q_proj.weight_scale": torch.float32})
    assert not caplog.records
