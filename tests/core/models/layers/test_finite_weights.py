"""The NaN check of weights, for every dtype."""

from __future__ import annotations

import pytest
import torch

from core.models.layers.weights import MAX_CHECKED_WHOLE, NUM_SAMPLES, is_finite, numbers_of, sample

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_is_detected_in_every_dtype(dtype: torch.dtype) -> None:
    good = torch.linspace(-1, 1, 3 * MAX_CHECKED_WHOLE).to(dtype)
    assert is_finite(sample(good))
    assert not is_finite(sample(torch.full_like(good, float("nan"))))
    assert not is_finite(numbers_of(torch.cat([good, torch.full_like(good[:1], float("nan"))])))


def test_opposite_infinities_do_not_cancel() -> None:
    assert not is_finite(torch.tensor([float("inf"), float("-inf")]))


def test_largest_finite_values_pass_the_check() -> None:
    assert is_finite(torch.full((MAX_CHECKED_WHOLE,), torch.finfo(torch.float32).max))


def test_small_tensors_are_checked_whole_and_large_ones_sampled_evenly() -> None:
    assert sample(torch.ones(MAX_CHECKED_WHOLE)).numel() == MAX_CHECKED_WHOLE
    large = torch.ones(1000, 1000)
    assert NUM_SAMPLES <= sample(large).numel() <= 2 * NUM_SAMPLES
    large[500:508] = float("nan")
    assert not is_finite(sample(large)), "a piece larger than the gaps is seen"


@pytest.mark.parametrize(
    "tensor", [torch.ones(9, dtype=torch.int8), torch.tensor(float("-inf")), torch.ones(0)]
)
def test_integers_masks_and_empty_tensors_are_not_checked(tensor: torch.Tensor) -> None:
    assert is_finite(sample(tensor))


def test_finite_check_reads_only_the_view() -> None:
    tensor = torch.ones(128, 128).t()
    tensor[3, 5] = float("inf")
    assert not is_finite(numbers_of(tensor))
