"""The library's choice of tokens, and what the head gives it: as the reference defines it, on every
instruction set.
"""

from __future__ import annotations

import pytest
import torch
from core_kernels.elementwise import ElementOps
from core_kernels.library import load_library
from core_kernels.row_ops import RowOps
from core_kernels.sampling import SamplingOps

from core.models.ops import reference, sampling

LIBRARY = load_library()
WIDTHS = [1, 2, 15, 16, 17, 64, 65, 127, 128, 129, 300, 3072]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NOTHING = float("-inf")
NO_NUMBER = float("nan")

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C++ library on this machine")


@pytest.mark.parametrize("width", WIDTHS)
def test_argmax_matches_reference(vector_isa: str, width: int) -> None:
    assert LIBRARY is not None
    logits = torch.randn(9, width)
    logits[1, width // 2] = logits[1, -1] = 50.0  # the first of equals
    logits[2] = NOTHING
    logits[3, width - 1] = NO_NUMBER
    logits[4, width // 3 :] = NO_NUMBER
    logits[5, 0] = float("inf")
    wide = torch.cat((logits, torch.full((9, 3), 99.0)), 1)[:, :width]
    for each in (logits, wide):
        found = SamplingOps(LIBRARY).argmax(each)
        assert found is not None
        values, tokens = sampling.best(each.clone())
        torch.testing.assert_close(found[0], values, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found[1], tokens)


@pytest.mark.parametrize("width", WIDTHS)
def test_sampling_follows_the_cumulative_distribution(vector_isa: str, width: int) -> None:
    assert LIBRARY is not None
    numbers = torch.linspace(0, 1, 200, dtype=torch.float64)[:-1]
    logits = (torch.randn(1, width) * 4).expand(len(numbers), width).contiguous()
    logits[:, ::3] = NOTHING if width > 1 else 0.0
    tokens = SamplingOps(LIBRARY).sample(logits, numbers)
    assert tokens is not None
    shares = logits[0].double().softmax(0)
    ends = shares.cumsum(0)
    assert bool((shares[tokens] > 0).all())
    assert bool((ends[tokens] >= numbers - 1e-5).all())
    assert bool((ends[tokens] - shares[tokens] <= numbers + 1e-5).all())
    assert torch.equal(tokens, tokens.sort().values)


def test_fully_masked_rows_do_not_affect_others(vector_isa: str) -> None:
    assert LIBRARY is not None
    logits = torch.randn(5, 200)
    logits[1] = NOTHING
    logits[2, 7] = NO_NUMBER
    logits[3, :-1] = NOTHING
    numbers = torch.full((5,), 0.999999, dtype=torch.float64)
    tokens = SamplingOps(LIBRARY).sample(logits, numbers)
    assert tokens is not None
    assert tokens[3] == 199
    assert bool(((tokens >= 0) & (tokens < 200)).all())
    alone = [SamplingOps(LIBRARY).sample(logits[i : i + 1], numbers[i : i + 1]) for i in (0, 4)]
    assert [each.item() for each in alone if each is not None] == [
        tokens[0].item(),
        tokens[4].item(),
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_widening_is_exact(vector_isa: str, dtype: torch.dtype) -> None:
    assert LIBRARY is not None
    for shape in ((0, 5), (1, 1), (3, 16), (4, 33), (70, 600)):
        x = torch.randn(shape).to(dtype)
        found = RowOps(LIBRARY).widen(x)
        assert found is not None
        assert torch.equal(found, x.float())
        found = RowOps(LIBRARY).widen(x[:, : shape[1] // 2])
        assert found is not None
        assert torch.equal(found, x[:, : shape[1] // 2].float())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 16), (5, 33), (2, 3, 17), (40, 1030)], ids=str)
def test_layer_norm_matches_reference(
    vector_isa: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    assert LIBRARY is not None
    x = torch.randn(shape).to(dtype) * 3 + 1
    weight = torch.rand(shape[-1]).to(dtype)
    bias = torch.randn(shape[-1]).to(dtype)
    wide = torch.cat((x, x), -1)[..., : shape[-1]]
    for given in (x, wide):
        for parameters in ((weight, bias), (weight, None), (None, None)):
            found = ElementOps(LIBRARY).layer_norm(given, *parameters, 1e-5)
            assert found is not None
            tolerance = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
            expected = reference.layer_norm(x, *parameters, 1e-5)
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_unsupported_inputs_return_none() -> None:
    assert LIBRARY is not None
    choices = SamplingOps(LIBRARY)
    elements = ElementOps(LIBRARY)
    assert choices.argmax(torch.randn(2, 3).double()) is None
    assert choices.argmax(torch.randn(3, 2).t()) is None
    assert choices.sample(torch.zeros(0, 4), torch.zeros(0, dtype=torch.float64)) is None
    assert elements.layer_norm(torch.randn(4, 4).t(), None, None, 1e-5) is None
    assert elements.take(torch.randn(4, 4).t(), torch.tensor([1])) is None
    assert elements.unary(torch.arange(4), 0) is None
    assert RowOps(LIBRARY).widen(torch.randn(4)) is None
