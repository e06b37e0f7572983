"""Each format has a kernel, or the log warns once about the dequantized fallback and its cost."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from core_kernels.library import load_library
from torch import nn

from builtin_plugins.quant_methods.cpu_packed.method import make_method
from builtin_plugins.quant_methods.rtn import method as rtn
from builtin_plugins.quant_methods.stored.backends import DequantizedBackend
from core.models.layers.linear import PlainLinear
from core.plugin import load_plan, make_plan
from tests.builtin_plugins.quant_methods.writers.all_formats import cases
from tests.builtin_plugins.quant_methods.writers.bitsandbytes import writer as nf4
from tests.builtin_plugins.quant_methods.writers.float_formats import CASES as FLOATS
from tests.builtin_plugins.quant_methods.writers.model import whole

needs_kernels = pytest.mark.skipif(load_library() is None, reason="no C++ library on this machine")
CASES = cases() | FLOATS
# Blocks of a row are dequantized
CASES["bitsandbytes nf4"] = (
    nf4(),
    CASES.pop("bitsandbytes nf4 in blocks of a row")[1],
)
ROWS = 128
WIDTH = 256
ONE = SimpleNamespace(model=SimpleNamespace(), options={})
WARNING = (
    "no kernel of this device multiplies by 2 of the weights as they are stored; they are "
    "dequantized and computed in bfloat16"
)


def has_no_kernel(name: str) -> bool:
    """Formats with scales shared across rows, and rotated ones, as in
    docs/guides/quantization.md.
    """
    return name.startswith("fp_quant") or (name.startswith("hqq") and name.endswith("axis 0"))


def backends(name: str) -> list[Any]:
    """Return the backends of two layers, created first and loaded then, as in a model."""
    write, make = CASES[name]
    quant = make()
    made = {}
    for number in range(2):
        prefix = f"model.layers.{number}.mlp.down_proj"
        layer = nn.Module()
        method = quant.linear(prefix)
        layer.parts = {prefix: whole(ROWS, WIDTH)}  # type: ignore[assignment]
        layer.ops = None
        method.use_plain_method(lambda: make_method().linear("any"))
        method.create(layer, WIDTH, ROWS, torch.bfloat16)
        made[prefix] = layer, method
    for prefix, (layer, method) in made.items():
        stored: Any = quant.format_of(prefix)
        for suffix, tensor in write(torch.randn(ROWS, WIDTH) / 16)[0].items():
            method.load(layer, stored.other_names.get(suffix, suffix), tensor, layer.parts[prefix])  # type: ignore[index]
        method.finish(layer)
    return [rows.backend for _, method in made.values() for rows in method._distinct]


@needs_kernels
@pytest.mark.parametrize("name", CASES)
def test_format_without_kernel_is_logged_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    slow = [isinstance(backend, DequantizedBackend) for backend in backends(name)]
    assert slow == [has_no_kernel(name)] * 2
    assert [WARNING in record.getMessage() for record in caplog.records] == [True] * has_no_kernel(
        name
    )


def test_all_methods_are_covered() -> None:
    """Builtin methods for stored weights are tested above; others have tests of their own."""
    covered = {make().name for _, make in CASES.values()}
    elsewhere = {
        "mxfp4",
        "deepspeedfp",
        "int8",
        "int4",
        "experts_int8",
        "packed",
        "triton",
        "triton_float8",
        "triton_block_scaled",
    }
    entries = [each.entry for each in load_plan(make_plan([])).entries("quant_methods")]
    assert covered | elsewhere == {
        each.name for each in entries if str(each.target).startswith("builtin_plugins.")
    }


def test_rtn_without_library_logs_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rtn, "load_library", lambda: None)
    quant = rtn.Int4(None, ONE)  # type: ignore[arg-type]
    for method in (quant.linear("a"), quant.experts("b")):
        method.use_plain_method(PlainLinear)  # type: ignore[attr-defined]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(
        "int4: no kernel of this device multiplies by rounded weights"
    )
