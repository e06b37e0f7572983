"""Products in tile registers (AMX): what is checked before they are used, and what they do where
machines that lack them can check.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest
import torch
from core_kernels.build import FOLDER, LIBRARY_NAME
from core_kernels.library import load_library
from core_kernels.packed import PackedOps

LIBRARY = load_library()
INSTRUCTIONS = (
    "ldtilecfg",
    "tilerelease",
    "tileloadd",
    "tilestored",
    "tilezero",
    "tdpbf16ps",
    "tdpbsud",
)

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C++ library on this machine")


@pytest.fixture
def emulated() -> Iterator[PackedOps]:
    """Return the products of emulated registers."""
    assert LIBRARY is not None
    best = LIBRARY.core_kernels_isa()
    if not LIBRARY.core_kernels_runs(b"amx_emulated"):
        pytest.skip(
            "this machine lacks what surrounds tile registers (AVX-512 with bfloat16 and VNNI)"
        )
    if not LIBRARY.core_kernels_use(b"amx_emulated"):
        pytest.skip("the library was built without amx_emulated; `make test` builds it")
    torch.manual_seed(0)
    yield PackedOps(LIBRARY)
    LIBRARY.core_kernels_use(best)


@pytest.mark.usefixtures("emulated")
def test_tile_check_detects_another_summation_order() -> None:
    assert LIBRARY is not None
    assert LIBRARY.core_kernels_match(b"amx_emulated", b"amx_emulated") == 1
    for other in {"generic", "avx512", "avx512_bf16"} & set(LIBRARY.variants):
        assert LIBRARY.core_kernels_match(b"amx_emulated", other.encode()) == 0
    assert LIBRARY.core_kernels_match(b"amx_emulated", b"none such") == -1


def test_tile_emulation_is_not_selected_automatically() -> None:
    assert LIBRARY is not None
    assert LIBRARY.core_kernels_isa() != b"amx_emulated"
    assert LIBRARY.core_kernels_warning() == b""


@pytest.mark.parametrize("size", [1e-19, 1e-38, 1e38], ids=str)
def test_tile_sums_match_single_rows_at_extremes(emulated: PackedOps, size: float) -> None:
    """Products that are subnormal are zero, and what overflows is infinite, however many rows there
    are.
    """
    weight = torch.randn(64, 70).bfloat16()
    x = (torch.randn(40, 70) * size).bfloat16()
    weight = weight if size > 1 else (weight * 1e-19).bfloat16()
    own = emulated.empty(64, 70, torch.bfloat16)
    emulated.pack(own, 64, 0, weight)
    together = emulated.linear(x, own, 64)
    alone = torch.cat([emulated.linear(row[None], own, 64) for row in x])
    torch.testing.assert_close(together, alone, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("count", [3, 4, 15, 16, 17, 31, 32, 33, 64, 65])
def test_tile_gemm_with_partial_registers(emulated: PackedOps, count: int) -> None:
    for out, width in ((64, 64), (80, 32), (48, 96), (130, 34)):
        weight = torch.randn(out, width).bfloat16()
        x = torch.randn(count, width).bfloat16()
        own = emulated.empty(out, width, torch.bfloat16)
        emulated.pack(own, out, 0, weight)
        found = emulated.linear(x, own, out)
        torch.testing.assert_close(
            found.double(), x.double() @ weight.double().T, rtol=2e-2, atol=2e-2
        )
        assert torch.equal(found, torch.cat([emulated.linear(row[None], own, out) for row in x]))


@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump on this machine")
@pytest.mark.skipif(
    not (FOLDER / LIBRARY_NAME).exists(), reason="the library is not next to its sources"
)
def test_library_contains_tile_instructions() -> None:
    """What runs emulated here is made of the very instructions on a processor that has them."""
    done = subprocess.run(
        ["objdump", "--disassemble", "--no-show-raw-insn", str(FOLDER / LIBRARY_NAME)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    if LIBRARY is None or "amx" not in LIBRARY.variants:
        pytest.skip("the library was built without amx; `make test-all` builds it")
    assert [name for name in INSTRUCTIONS if name not in done.stdout] == []
