"""Triton kernels equal their references for aligned, odd and strided memory, in the interpreter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import core_kernels.triton
import numpy as np
import pytest
import torch
from triton.runtime.interpreter import GridExecutor, TensorHandle

from builtin_plugins.op_impls.triton import plugin
from tests.kernels.triton.alignment_cases import KERNELS, LAYOUTS, aligned, op_results

SOURCES = Path(core_kernels.triton.__file__).parent
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
FAST_OPS = ("add_rms_norm", "gated_linear", "rotary")


@pytest.fixture(autouse=True)
def stated_alignments_are_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check each number that a kernel states to be a multiple: a GPU reads it as one."""
    torch.manual_seed(0)
    state = TensorHandle.set_attr

    def checked(self: Any, name: str, values: list[int]) -> None:
        if name == "tt.divisibility":
            (multiple,) = values
            assert not np.any(self.data.astype(np.int64) % multiple)
        state(self, name, values)

    monkeypatch.setattr(TensorHandle, "set_attr", checked)


def check(pairs: Iterator[tuple[torch.Tensor, torch.Tensor]], dtype: torch.dtype) -> None:
    """Compare; the largest number sets the tolerance, since sums may cancel."""
    for found, expected in pairs:
        largest = float(expected.abs().max()) if expected.numel() else 0.0
        limit = TOLERANCE[dtype] * max(1.0, largest if largest < float("inf") else 1.0)
        torch.testing.assert_close(found, expected, atol=limit, rtol=TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("name", "layout", "dtype"),
    [
        pytest.param(
            *given, marks=() if given[1:] == ("strided", torch.float32) else pytest.mark.slow
        )
        for given in product(KERNELS, LAYOUTS, TOLERANCE)
    ],
)
def test_kernels_equal_their_reference_in_each_layout(
    name: str, layout: str, dtype: torch.dtype
) -> None:
    check(KERNELS[name](LAYOUTS[layout], dtype), dtype)


@pytest.mark.parametrize(
    ("op", "layout", "dtype"),
    [
        pytest.param(
            *given,
            marks=()
            if given[0] in FAST_OPS and given[1:] == ("strided", torch.float32)
            else pytest.mark.slow,
        )
        for given in product(plugin.OPS, LAYOUTS, TOLERANCE)
    ],
)
def test_ops_equal_their_reference_in_each_layout(op: str, layout: str, dtype: torch.dtype) -> None:
    check(op_results(op, LAYOUTS[layout], dtype), dtype)


def test_every_launched_kernel_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel that the sources launch is launched by one of the cases; none runs here."""
    ran: set[str] = set()

    def recorded(self: Any, *args: Any, **kwargs: Any) -> None:
        ran.add(self.fn.__name__)

    monkeypatch.setattr(GridExecutor, "__call__", recorded)
    for case in KERNELS.values():
        list(case(aligned, torch.float32))
    for op in plugin.OPS:
        list(op_results(op, aligned, torch.float32))
    launched = {
        name
        for source in SOURCES.glob("*.py")
        for name in re.findall(r"(?<!\.)\b(_\w+)\[", source.read_text())
        if f"def {name}(" in source.read_text()
    }
    assert launched <= ran
