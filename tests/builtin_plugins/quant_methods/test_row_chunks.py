"""A weight is unpacked in row chunks, which equal the whole weight and have bounded cost."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from builtin_plugins.quant_methods.bitsandbytes.method import BitsAndBytes, FourBitFormat
from builtin_plugins.quant_methods.hqq.method import HqqFormat
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.torchao.format import unswizzle
from tests.builtin_plugins.quant_methods.writers import bitsandbytes as bitsandbytes_writers
from tests.builtin_plugins.quant_methods.writers import hqq as hqq_writers
from tests.builtin_plugins.quant_methods.writers import torchao as torchao_writers
from tests.builtin_plugins.quant_methods.writers.all_formats import cases
from tests.builtin_plugins.quant_methods.writers.model import Tensors, whole

ROWS = 8
IN = 128
MAX_GROWTH = 1.25


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
    """Return each format with the tensors of a weight with `out` rows."""
    weight = torch.randn(out, IN, generator=torch.Generator().manual_seed(3))
    made = cases() | {
        f"bitsandbytes {name}": (write, lambda f=facts: BitsAndBytes(f))
        for name, (write, facts) in bitsandbytes_writers.CASES.items()
    }
    found = {}
    for name, (write, quant) in made.items():
        stored = quant().choose_format("model.layers.0.mlp.up_proj")
        assert stored is not None
        tensors = {
            stored.other_names.get(suffix, suffix): tensor
            for suffix, tensor in write(weight)[0].items()
        }
        found[name] = stored, {suffix: tensors[suffix] for suffix in stored.suffixes}
    return found


def test_row_chunks_equal_whole_weight() -> None:
    for name, (stored, tensors) in every_format(40).items():
        part = whole(40, IN)
        found = [stored.unpack(tensors, rows).dequantize() for rows in part.blocks(ROWS)]
        assert torch.equal(torch.cat(found), stored.unpack(tensors, part).dequantize()), name


def test_row_chunks_of_row_spanning_groups_equal_whole_weight() -> None:
    """Rows of 24 inputs, blocks of 64; rows of odd width begin inside bytes."""
    for width in (24, 7):
        weight = torch.randn(64, width)
        part = whole(64, width)
        for stored, tensors in (
            (FourBitFormat("nf4", nested=True), bitsandbytes_writers.writer(nested=True)(weight)),
            (HqqFormat(4, 64, 1), hqq_writers.writer(4, 64)(weight)),
            (HqqFormat(3, 64, 0), hqq_writers.writer(3, 64, 0)(weight)),
        ):
            found = [stored.unpack(tensors[0], rows).dequantize() for rows in part.blocks(ROWS)]
            torch.testing.assert_close(torch.cat(found), tensors[1])


def test_swizzled_scales_of_row_chunks_equal_whole() -> None:
    scales = torch.randint(0, 256, (300, 6)).to(torch.uint8)
    part = whole(300, 96)
    found = [unswizzle(torchao_writers.swizzled(scales), rows, 6) for rows in part.blocks(100)]
    assert torch.equal(torch.cat(found), scales)


def test_chunk_cost_is_independent_of_weight_size() -> None:
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
    assert [name for name in few if many[name] > MAX_GROWTH * few[name]] == []
