"""What the tests of the C++ library share: each instruction set in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from core_kernels.build import VARIANTS
from core_kernels.library import load_library

VECTORS = ["generic", "avx2", "avx512", "avx512_vnni", "avx512_bf16"]


@pytest.fixture(params=VECTORS)
def vector_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Compute on this instruction set, where there is a library and the machine has it."""
    yield from computing_on(request.param)


@pytest.fixture(params=list(VARIANTS))
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Compute on this instruction set; products have some that other ops have not."""
    yield from computing_on(request.param)


def computing_on(isa: str) -> Iterator[str]:
    library = load_library()
    if library is None:
        pytest.skip("no C++ library on this machine")
    best = library.core_kernels_isa()
    if not library.core_kernels_runs(isa.encode()):
        pytest.skip(f"this processor has no {isa}")
    if not library.core_kernels_use(isa.encode()):
        pytest.skip(f"the library was built without {isa}; `make test-all` builds it")
    torch.manual_seed(0)
    yield isa
    library.core_kernels_use(best)
