"""Weights of every format that is read have a kernel here, or the log says once that they have none
and what that costs.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from core_kernels.library import load_library
from torch import nn

from builtin_plugins.quant_methods.packed.method import make_method
from builtin_plugins.quant_methods.rounded import method as rounded
from builtin_plugins.quant_methods.stored.keeping import PlainKeeper
from core.models.layers.linear import PlainLinear
from core.plugin import load_plan, make_plan
from tests.quant_methods.test_bitsandbytes import writer as nf4
from tests.quant_methods.test_floats import CASES as FLOATS
from tests.quant_methods.test_layouts import whole
from tests.quant_methods.test_matrix import cases

needs_kernels = pytest.mark.skipif(load_library() is None, reason="no C++ library on this machine")
CASES = cases() | FLOATS
CASES["bitsandbytes nf4"] = (
    nf4(),
    CASES.pop("bitsandbytes nf4 in blocks of a row")[1],
)  # those are not kept
ROWS = 128
WIDTH = 256
ONE = SimpleNamespace(model=SimpleNamespace(), options={})
TOLD = "no kernel of this device multiplies by 2 of the weights as they are stored; they are unpacked and compute as bfloat16"


def has_no_kernel(name: str) -> bool:
    """Numbers that share a scale with those of other rows, and rotated ones, as
    docs/quantization.md has them.
    """
    return name.startswith("fp_quant") or (name.startswith("hqq") and name.endswith("axis 0"))


def keepers(name: str) -> list[Any]:
    """Return who keeps each of two layers, made first and filled then, as a model's are."""
    write, make = CASES[name]
    quant = make()
    made = {}
    for number in range(2):
        prefix = f"model.layers.{number}.mlp.down_proj"
        layer = nn.Module()
        method = quant.linear(prefix)
        # type: ignore[assignment]
        layer.parts = {prefix: whole(ROWS, WIDTH)}
        layer.ops = None
        method.onto(lambda: make_method().linear("any"))
        method.create(layer, WIDTH, ROWS, torch.bfloat16)
        made[prefix] = layer, method
    for prefix, (layer, method) in made.items():
        stored: Any = quant.format_of(prefix)
        for suffix, tensor in write(torch.randn(ROWS, WIDTH) / 16)[0].items():
            method.load(layer, stored.other_names.get(suffix, suffix), tensor, layer.parts[prefix])  # type: ignore[index]
        method.finish(layer)
    return [kept.keeper for _, method in made.values() for kept in method._distinct]


@needs_kernels
@pytest.mark.parametrize("name", CASES)
def test_a_format_has_a_kernel_or_the_log_says_once_that_it_has_none(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    slow = [isinstance(keeper, PlainKeeper) for keeper in keepers(name)]
    assert slow == [has_no_kernel(name)] * 2
    assert [TOLD in record.getMessage() for record in caplog.records] == [True] * has_no_kernel(
        name
    )


def test_no_method_is_left_out() -> None:
    """Builtins that read stored weights are asked above; others by tests of their own, or have
    nothing to unpack.
    """
    asked = {make().name for _, make in CASES.values()}
    elsewhere = {
        "mxfp4",
        "deepspeedfp",
        "int8",
        "int4",
        "experts_int8",
        "packed",
        "triton",
        "triton_float8",
    }
    entries = [each.entry for each in load_plan(make_plan([])).entries("quant_methods")]
    assert asked | elsewhere == {
        each.name for each in entries if str(each.target).startswith("builtin_plugins.")
    }


def test_rounded_weights_without_the_library_say_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rounded, "load_library", lambda: None)
    quant = rounded.Int4(None, ONE)  # type: ignore[arg-type]
    for method in (quant.linear("a"), quant.experts("b")):
        method.onto(PlainLinear)  # type: ignore[attr-defined]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(
        "int4: no kernel of this device multiplies by rounded weights"
    )
