"""The measured speed of products is that of the products."""

from __future__ import annotations

import pytest
from core_kernels import speed
from core_kernels.library import load_library

LIBRARY = load_library()

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C++ library on this machine")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure with fewer weights: any speed will do."""
    monkeypatch.setattr(speed, "STORED_BYTES", 4 << 20)
    monkeypatch.setattr(speed, "SHARED_BYTES", 1 << 20)
    monkeypatch.setattr(speed, "MIN_ROUNDS", 1)
    monkeypatch.setattr(speed, "MIN_S", 0)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", speed.DTYPES)
def test_measured_speeds_are_positive_and_many_rows_share_the_weights(kind: str) -> None:
    assert LIBRARY is not None
    measured = speed.measure_speed(LIBRARY, kind)
    assert measured.kind == kind
    assert measured.decode_bytes > 0
    assert measured.prefill_bytes > 0


@pytest.mark.usefixtures("small")
def test_speed_is_bytes_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which every call takes a quarter of a second."""
    assert LIBRARY is not None
    times = iter(range(1000))
    monkeypatch.setattr(speed.time, "perf_counter", lambda: next(times) / 4)
    measured = speed.measure_speed(LIBRARY, "bfloat16")
    assert measured.decode_bytes == 4 * (4 << 20)
    assert measured.prefill_bytes == 4 * (1 << 20) * speed.MANY_ROWS


def test_speed_is_that_of_the_fastest_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs interrupt all calls but one."""
    seconds = iter([4.0, 3.0, 0.25, 5.0])
    monkeypatch.setattr(speed, "MIN_ROUNDS", 4)
    clock = [0.0]

    def run() -> None:
        clock[0] += next(seconds)

    monkeypatch.setattr(speed.time, "perf_counter", lambda: clock[0])
    assert speed._seconds(run) == 0.25


def test_bfloat16_is_widened_where_the_variant_has_no_pairs() -> None:
    assert LIBRARY is not None
    best = LIBRARY.core_kernels_isa()
    try:
        for isa in LIBRARY.variants:
            if LIBRARY.core_kernels_use(isa.encode()):
                expected = isa in ("generic", "avx2", "avx2_vnni", "avx512", "avx512_vnni")
                assert speed.widens_bfloat16(LIBRARY) == expected
                assert speed.prefers_int8(LIBRARY) == (expected and isa != "generic")
    finally:
        LIBRARY.core_kernels_use(best)
