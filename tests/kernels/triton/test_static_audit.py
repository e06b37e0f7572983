"""What Triton's compiler makes of the kernels in real shapes, for a GPU that need not be there."""

from __future__ import annotations

import json

import pytest

from tests.kernels.triton.test_kernels_compile import run_compiled

SPILLED_BYTES = {"_decode": 32}
"""Bytes of registers in memory, per thread, that a kernel may have; others none. The decoding of
512 latent elements holds more numbers than a thread has registers.
"""
NARROW = {"_delta", "_ssd", "_reduce", "_write_qk_norm_rope", "_latent_rows"}
NARROW |= {"_block_scaled_product"}
"""Kernels that read shares, steps, scales, interleaved pairs or weights of experts one by one."""


@pytest.fixture(scope="module")
def programs() -> list[dict[str, object]]:
    done = run_compiled("tests.kernels.triton.static_programs")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_kernels_hold_their_numbers_in_registers(programs: list[dict[str, object]]) -> None:
    spilled = {
        (each["kernel"], each["model"], each["spilled_bytes"])
        for each in programs
        if each["spilled_bytes"] > SPILLED_BYTES.get(str(each["kernel"]), 0)  # type: ignore[operator]
    }
    assert not spilled


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
