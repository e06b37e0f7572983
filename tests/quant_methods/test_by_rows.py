"""A weight is unpacked few rows at a time: they are what they are of the whole, and cost no more of
a larger weight.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from builtin_plugins.quant_methods.bitsandbytes.format import FourBitFormat
from builtin_plugins.quant_methods.hqq.format import HqqFormat
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.torchao.format import in_rows
from tests.quant_methods import test_bitsandbytes, test_hqq, test_torchao
from tests.quant_methods.stored import Tensors
from tests.quant_methods.test_layouts import whole
from tests.quant_methods.test_matrix import cases

ROWS = 8
IN = 128
MORE_AT_MOST = 1.25


class Made(TorchDispatchMode):  # type: ignore[misc]
    """Counts the bytes of new tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        old = {each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)}
        if (
            isinstance(out, torch.Tensor)
            and not out.is_meta
            and out.untyped_storage().data_ptr() not in old
        ):
            self.bytes += out.nbytes
        return out


def every_format(out: int) -> dict[str, tuple[StoredFormat, Tensors]]:
    """Return each format with the tensors of a weight of so many rows."""
    weight = torch.randn(out, IN, generator=torch.Generator().manual_seed(3))
    made = cases() | {
        f"bitsandbytes {name}": (write, lambda f=facts: test_bitsandbytes.BitsAndBytes(f))
        for name, (write, facts) in test_bitsandbytes.CASES.items()
    }
    found = {}
    for name, (write, quant) in made.items():
        stored = quant().decide("model.layers.0.mlp.up_proj")
        assert stored is not None
        tensors = {
            stored.other_names.get(suffix, suffix): tensor
            for suffix, tensor in write(weight)[0].items()
        }
        found[name] = stored, {suffix: tensors[suffix] for suffix in stored.suffixes}
    return found


def test_some_rows_are_what_they_are_of_the_whole() -> None:
    for name, (stored, tensors) in every_format(40).items():
        part = whole(40, IN)
        found = [stored.unpack(tensors, rows).plain() for rows in part.blocks(ROWS)]
        assert torch.equal(torch.cat(found), stored.unpack(tensors, part).plain()), name


def test_groups_that_run_on_are_those_of_the_whole() -> None:
    """Rows of 24 inputs, blocks of 64; rows of an odd number begin inside of bytes."""
    for width in (24, 7):
        weight = torch.randn(64, width)
        part = whole(64, width)
        for stored, tensors in (
            (FourBitFormat("nf4", nested=True), test_bitsandbytes.writer(nested=True)(weight)),
            (HqqFormat(4, 64, 1), test_hqq.writer(4, 64)(weight)),
            (HqqFormat(3, 64, 0), test_hqq.writer(3, 64, 0)(weight)),
        ):
            found = [stored.unpack(tensors[0], rows).plain() for rows in part.blocks(ROWS)]
            torch.testing.assert_close(torch.cat(found), tensors[1])


def test_swizzled_scales_of_some_rows_are_those_of_the_whole() -> None:
    scales = torch.randint(0, 256, (300, 6)).to(torch.uint8)
    part = whole(300, 96)
    found = [in_rows(test_torchao.swizzled(scales), rows, 6) for rows in part.blocks(100)]
    assert torch.equal(torch.cat(found), scales)


def test_few_rows_of_a_larger_weight_cost_no_more() -> None:
    def cost(stored: StoredFormat, tensors: Tensors, out: int) -> int:
        rows = next(whole(out, IN).blocks(ROWS))
        with Made() as made:
            stored.unpack(tensors, rows)
        return made.bytes

    few, many = (
        {name: cost(*case, out) for name, case in every_format(out).items()}
        for out in (ROWS * 8, ROWS * 16)
    )
    assert few["awq, groups of 16"] > ROWS * IN
    assert [name for name in few if many[name] > MORE_AT_MOST * few[name]] == []
