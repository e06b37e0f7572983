"""All formats and schemes with their writers, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from builtin_plugins.quant_methods.auto_round.method import AutoRound
from builtin_plugins.quant_methods.awq.method import Awq
from builtin_plugins.quant_methods.bitsandbytes.method import BitsAndBytes
from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from builtin_plugins.quant_methods.fp_quant.method import FpQuant
from builtin_plugins.quant_methods.gptq.method import Gptq
from builtin_plugins.quant_methods.hqq.method import Hqq
from builtin_plugins.quant_methods.quark.method import Quark
from builtin_plugins.quant_methods.stored.method import StoredMethod
from builtin_plugins.quant_methods.torchao.method import TorchAo
from tests.builtin_plugins.quant_methods.writers import auto_round as auto_round_writers
from tests.builtin_plugins.quant_methods.writers import awq as awq_writers
from tests.builtin_plugins.quant_methods.writers import bitsandbytes as bitsandbytes_writers
from tests.builtin_plugins.quant_methods.writers import (
    compressed_tensors as compressed_tensors_writers,
)
from tests.builtin_plugins.quant_methods.writers import float_formats as float_formats_writers
from tests.builtin_plugins.quant_methods.writers import fp_quant as fp_quant_writers
from tests.builtin_plugins.quant_methods.writers import gptq as gptq_writers
from tests.builtin_plugins.quant_methods.writers import hqq as hqq_writers
from tests.builtin_plugins.quant_methods.writers import quark as quark_writers
from tests.builtin_plugins.quant_methods.writers import torchao as torchao_writers
from tests.builtin_plugins.quant_methods.writers.model import (
    Writer,
)

Case = tuple[Writer, Callable[[], StoredMethod]]


def gptq_cases() -> dict[str, Case]:
    """Return each bit width with three group sizes, with and without zero points and g_idx."""
    kinds: list[tuple[int, int, dict[str, Any]]] = [
        (bits, group, {"sym": sym, "order": order})
        for bits, group in ((2, 16), (3, 32), (4, 16), (4, 32), (4, -1), (8, 32), (8, -1))
        for sym in (True, False)
        for order in (False, True)
        if not (order and group == -1)
    ]
    return {
        f"gptq {bits} bits, groups of {group}, "
        f"{'no ' * more['sym']}zeros{', ordered' * more['order']}": (
            gptq_writers.writer(bits, group, **more),
            lambda bits=bits, group=group, more=more: Gptq(
                gptq_writers.config(bits, group, **more)
            ),  # type: ignore[misc]
        )
        for bits, group, more in kinds
    }


def compressed_tensors_case(name: str) -> Case:
    layout, facts = compressed_tensors_writers.SCHEMES[name]
    settings = compressed_tensors_writers.config(layout, facts)
    return compressed_tensors_writers.library_writer(layout, facts), lambda: CompressedTensors(
        settings
    )


def cases() -> dict[str, Case]:
    """Return all formats, by name."""
    found = gptq_cases()
    for group in (16, 32, -1):
        found[f"awq, groups of {group}"] = (
            awq_writers.writer(group),
            lambda g=group: Awq(awq_writers.config(g)),
        )  # type: ignore[misc]
    for packing, sym, write in (
        ("auto_round", False, gptq_writers.writer(sym=False, zero_point_offset=0)),
        ("auto_round:auto_gptq", True, gptq_writers.writer()),
        ("auto_round:auto_awq", False, awq_writers.writer()),
    ):
        settings = auto_round_writers.config(packing, sym=sym)
        found[f"auto-round, {packing}"] = (write, lambda s=settings: AutoRound(s))  # type: ignore[misc]
    found |= {
        f"compressed-tensors {name}": compressed_tensors_case(name)
        for name in compressed_tensors_writers.SCHEMES
    }
    early = "fp8 in blocks that end early"  # two ranks' rows end inside such a block
    found |= {
        name: case
        for name, case in float_formats_writers.CASES.items()
        if name not in (early, "modelopt FP8 in blocks")
    }
    for name, (write, facts) in quark_writers.CASES.items():
        found[f"quark {name}"] = (write, lambda f=facts: Quark(quark_writers.config(f)))  # type: ignore[misc]
    for bits, group, axis in hqq_writers.CASES:
        facts = hqq_writers.config(bits, group, axis)
        found[f"hqq {bits} bits, groups of {group}, axis {axis}"] = (
            hqq_writers.writer(bits, group, axis),
            lambda f=facts: Hqq(f),  # type: ignore[misc]
        )
    for name in ("nf4 in blocks of a row", "int8"):
        write, facts = bitsandbytes_writers.CASES[name]
        found[f"bitsandbytes {name}"] = (write, lambda f=facts: BitsAndBytes(f))  # type: ignore[misc]
    for name, (write, facts) in fp_quant_writers.CASES.items():
        found[f"fp_quant {name}"] = (write, lambda f=facts: FpQuant(f))  # type: ignore[misc]
    for name, (write, facts) in torchao_writers.CASES.items():
        found[f"torchao {name}"] = (write, lambda f=facts: TorchAo(torchao_writers.config(f)))  # type: ignore[misc]
    return found
