"""What Triton's compiler makes of the kernels in real shapes, for a GPU that need not be there."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
from core_kernels.triton import registers

from benchmarks.gpu.cards import AUDIT
from benchmarks.gpu.compiled import TARGETS, NoDevice
from tests.kernels.triton.test_kernels_compile import run_compiled

NARROW = {"_delta", "_ssd", "_reduce", "_write_qk_norm_rope", "_latent_rows"}
"""Kernels that read shares, steps, interleaved pairs or weights of experts one by one."""


def audited(*target: str) -> list[dict[str, object]]:
    """Return what the audit says of the programs of a target, sm_90 by default."""
    done = run_compiled("tests.kernels.triton.static_programs", *target)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def programs() -> list[dict[str, object]]:
    return audited()


def test_kernels_hold_their_numbers_in_registers(programs: list[dict[str, object]]) -> None:
    assert not [each for each in programs if each["spilled_bytes"]]


@pytest.mark.slow
@pytest.mark.parametrize("target", [name for name in TARGETS if name != "sm_90"])
def test_kernels_of_other_targets_hold_their_numbers_in_registers(target: str) -> None:
    assert not [each for each in audited(target) if each["spilled_bytes"]]


def test_committed_audit_has_no_spilled_registers() -> None:
    text = AUDIT.read_text()
    assert re.findall(r"## (\w+)\n\n\d+ programs, 0 spill registers", text) == [*TARGETS]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("sm_90", [{}, {}, {}]),
        (
            "sm_120",
            [{"maxnreg": 255}, {"maxnreg": 128}, {"ptx_options": "--register-usage-level=10"}],
        ),
        ("gfx942", [{}, {}, {}]),
    ],
)
def test_launches_have_the_options_of_the_target(
    target: str, expected: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = SimpleNamespace(active=NoDevice(TARGETS[target]))
    monkeypatch.setattr(
        registers, "triton", SimpleNamespace(runtime=SimpleNamespace(driver=driver))
    )
    monkeypatch.setattr(registers, "INTERPRETED", False)
    launches = (("_attend", 8), ("_product", 4), ("_delta_chunks", 4))
    assert [registers.register_options(*launch) for launch in launches] == expected


def test_aligned_numbers_are_read_in_vectors(programs: list[dict[str, object]]) -> None:
    narrow = {each["kernel"] for each in programs if each["narrow_reads"]}
    assert narrow <= NARROW
    widest = {each["kernel"] for each in programs if each["widest_read"] == 16}
    assert widest >= {"_norm", "_gated", "_up", "_down", "_product", "_decode", "_attend"}
    assert widest >= {"_gated_product", "_expand", "_shrink", "_delta_chunks", "_ssd_chunks"}


def test_every_program_fits_a_multiprocessor(programs: list[dict[str, object]]) -> None:
    assert len(programs) > 80
    assert not [each for each in programs if not each["resident"]]


def test_products_use_matrix_units(programs: list[dict[str, object]]) -> None:
    multiplying = {"_up", "_down", "_product", "_decode", "_attend", "_shrink", "_expand"}
    multiplying |= {"_delta_chunks", "_ssd_chunks", "_gated_product"}
    assert multiplying <= {each["kernel"] for each in programs}
    assert not [each for each in programs if each["kernel"] in multiplying and not each["products"]]
