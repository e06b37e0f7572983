"""What every implementation of an op must hold to: it gives what the reference gives, on every
shape.

Checks compute on the CPU; an implementation for other devices alone is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import torch

from core.errors import did_you_mean
from core.model_spec.op_table import OpImplementation, OpTable
from core.models.dtypes import dtype_name
from core.models.ops import reference
from core.models.ops.experts import SCORES, ExpertGroups
from core.models.ops.sampling import Truncation
from core.plugin.facts import why_not

if TYPE_CHECKING:
    from core.testing.conformance import Subject

CONTRACT: Final = OpImplementation

_DTYPES: Final = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
_SCANS: Final = ("ssd_scan", "selective_scan", "delta_scan")
"""Their results are sums in which large terms cancel: they are rounded as the largest results are.
"""
_ROWS: Final = ((0,), (1,), (3,), (2, 5))
_WIDTHS: Final = (2, 16, 66)
Draw = Callable[..., torch.Tensor]


def check_names_an_op(subject: Subject) -> None:
    """The part of the name before `/` says which op it implements."""
    op = _op(subject)
    assert op in OpTable.names(), (
        f"{subject.entry.name}: there is no op {op!r}{did_you_mean(op, OpTable.names())}."
    )


def check_equals_the_reference(subject: Subject) -> None:
    """Over rows 0, 1, odd and nested, dtypes and strides, results equal the reference's within the
    dtype.
    """
    facts = {"device": "cpu", "dtype": [dtype_name(dtype) for dtype in _DTYPES]}
    if why_not(subject.entry, {**facts, "isa": subject.entry.when.get("isa", ())}) is not None:
        return
    expected_of: Callable[..., Any] = getattr(reference, _op(subject))
    for dtype, tolerance in _DTYPES.items():
        generator = torch.Generator().manual_seed(0)

        def draw(
            *shape: int, dtype: torch.dtype = dtype, generator: torch.Generator = generator
        ) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        for arguments in _examples(_op(subject), draw):
            expected = _tuple(expected_of(*_copies(arguments)))
            found = _tuple(subject.target(*_copies(arguments)))
            shapes = [tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in arguments]
            what = f"{subject.entry.name} on {shapes}"
            for ours, theirs in zip(found, expected, strict=True):
                _assert_equal(what, ours, theirs, tolerance, summed=_op(subject) in _SCANS)


def _assert_equal(what: str, found: Any, expected: Any, tolerance: float, *, summed: bool) -> None:
    def named(text: str) -> str:
        return f"{what}: {text}"

    scale = max(1.0, float(expected.abs().max())) if summed and expected.numel() else 1.0
    torch.testing.assert_close(found, expected, atol=scale * tolerance, rtol=tolerance, msg=named)


def _op(subject: Subject) -> str:
    return subject.entry.name.partition("/")[0]


def _tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _copies(arguments: tuple[Any, ...]) -> list[Any]:
    """Return arguments an implementation may overwrite, with the same strides."""
    return [_strided_copy(a) if isinstance(a, torch.Tensor) else a for a in arguments]


def _strided_copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_contiguous():
        return tensor.clone()
    base: Any = tensor.untyped_storage()
    base = base.clone()
    return torch.empty(0, dtype=tensor.dtype).set_(
        base, tensor.storage_offset(), tensor.shape, tensor.stride()
    )  # type: ignore[call-overload,no-any-return,unused-ignore]


def _examples(op: str, draw: Draw) -> Iterator[tuple[Any, ...]]:
    """Yield arguments for an op."""
    if op == "rotary":
        yield from _rotary_examples(draw)
    elif op == "moe":
        for num_tokens in (0, 1, 9):
            shares, experts = draw(num_tokens, 4).float().softmax(-1).topk(2, -1)
            yield (
                draw(num_tokens, 16),
                draw(4, 48, 16) * 0.2,
                draw(4, 16, 24) * 0.2,
                shares,
                experts,
                "silu",
            )
    elif op == "full_attention":
        for counts, window in (((), None), ((1,), None), ((5, 1, 9), None), ((9, 3), 4)):
            shape = sum(counts)
            bias = draw(4, 2 * max(counts, default=1) - 1).float()
            yield draw(shape, 4, 8), draw(shape, 2, 8), draw(shape, 2, 8), counts, 0.3, window, bias
            yield draw(shape, 4, 8), draw(shape, 4, 8), draw(shape, 4, 8), counts, 0.3, window
    elif op in ("causal_conv", *_SCANS):
        yield from _recurrent_examples(op, draw)
    elif op in ("best", "truncate", "draw"):
        yield from _sampling_examples(op, draw)
    elif op == "gated_linear":
        shapes = ((0, 16, 8), (1, 16, 8), (3, 66, 5), (64, 16, 8), (65, 16, 8))
        for num_rows, hidden, width in shapes:
            weight = draw(2 * width, hidden) * hidden**-0.5
            for activation in ("silu", "gelu", "gelu_tanh", "relu"):
                yield draw(num_rows, hidden), weight, activation
            yield draw(num_rows, hidden), weight, "silu", draw(2 * width)
        yield draw(3, 36)[:, :16], draw(10, 36)[:, :16], "silu"  # rows with gaps between
    elif op == "select_tokens":
        yield from _selection_examples(draw)
    elif op == "latent_rows":
        for num_tokens, heads, rank, size, half in (
            (0, 2, 8, 4, 2),
            (1, 5, 24, 8, 4),
            (9, 3, 7, 6, 2),
        ):
            down = draw(num_tokens, rank + size + 3)
            parts = down[:, :rank], down[:, rank : rank + size]
            rope_query = draw(num_tokens, heads, size + 2)[..., 2:]
            norm = draw(rank), 1e-5, 1.0
            where = draw(16, 2 * half).float(), torch.arange(num_tokens).flip(0)
            query = draw(num_tokens, heads, rank + size)
            yield query, *parts, rope_query, *norm, *where, num_tokens > 1
    elif op == "select_experts":
        yield from _router_examples(draw)
    elif op == "embedding":
        yield torch.tensor([0, 3, 3]), draw(5, 16)
    else:
        for width in _WIDTHS:
            for rows in _ROWS:
                yield from _row_examples(op, draw, draw(*rows, width), width)
            yield from _row_examples(
                op, draw, draw(3, 2 * width + 4)[:, :width], width
            )  # rows with gaps between


def _router_examples(draw: Draw) -> Iterator[tuple[Any, ...]]:
    """Yield router logits, which are float32 always."""
    for num_tokens, experts in ((0, 8), (1, 12), (5, 40)):
        logits = draw(num_tokens, experts).float() * 2
        bias = draw(experts).float()
        groups = ExpertGroups(4, 2, 2, 0.0)
        chosen = torch.arange(2 * num_tokens).view(num_tokens, 2) % experts
        for score in SCORES:
            yield logits, None, score, 3, ExpertGroups(), True, 1.0
            yield logits, bias, score, 4, groups, False, 2.5
            yield logits, bias, score, 2, groups._replace(num_ranked=1), True, 2.5
            yield logits, None, score, 2, ExpertGroups(), True, 1.0, chosen


def _row_examples(op: str, draw: Draw, x: torch.Tensor, width: int) -> Iterator[tuple[Any, ...]]:
    if op == "rms_norm":
        yield x, draw(width), 1e-6
        yield x, draw(width), 1e-5, 1.0
    elif op == "add_rms_norm":
        yield x, x.flip(0), draw(width), 1e-6
        yield x, x.flip(0), draw(width), 1e-5, 1.0
    elif op == "layer_norm":
        yield x, draw(width), draw(width), 1e-5
        yield x, draw(width), None, 1e-5
    elif op == "add_layer_norm":
        yield x, x.flip(0) * 3, draw(width), draw(width), 1e-5
        yield x, x.flip(0) * 3, draw(width), None, 1e-5
    elif op == "linear":
        yield x, draw(7, width) * width**-0.5, None
        yield x, draw(7, width) * width**-0.5, draw(7)
    elif op == "softcap":
        yield x, 5.0
    elif op.endswith("_and_mul"):
        yield (torch.cat((x, -x), -1),)
        yield (draw(3, 2 * width + 2)[:, : 2 * width],)
    else:
        yield (x,)


def _selection_examples(draw: Draw) -> Iterator[tuple[Any, ...]]:
    """Yield queries, and keys in blocks. Small integers: sums are exact, and many are equal."""
    for n, heads, size, block_size, length, count in (
        (1, 1, 2, 1, 5, 3),
        (3, 5, 30, 4, 40, 7),
        (9, 4, 64, 16, 200, 64),
    ):
        num_blocks = -(-length // block_size)
        query = draw(n, heads, size).round()
        weights = draw(n, heads).float().round()
        rows = draw(num_blocks + 2, block_size, size + 2).round()
        table = torch.arange(num_blocks, 0, -1, dtype=torch.int32)
        seen = torch.arange(length - n + 1, length + 1)
        yield query, weights, rows[..., 2:], table, seen, count


def _sampling_examples(op: str, draw: Draw) -> Iterator[tuple[Any, ...]]:
    """Yield logits, which are float32 always, of small and of odd vocabularies."""
    for rows in (0, 1, 12):
        for vocab in (1, 40, 300):
            logits = draw(rows, vocab).float() * 3
            if op == "best":
                yield (logits.round(),)  # with equals
            elif op == "draw":
                logits[:, ::3] = logits[:, ::3] if vocab == 1 else float("-inf")
                yield logits, torch.arange(rows) * 77, torch.arange(rows)
            else:
                top_k = [0, 1, 3, 39, 299, 1 << 20][:rows] * 2
                top_p = [1.0, 0.9, 0.3, 1e-50][:rows] * 3
                yield logits, Truncation(top_k[:rows], top_p[:rows], vocab, logits.device)


def _rotary_examples(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for rows in (0, 1, 5):
        for size, turning in ((16, 16), (16, 8), (6, 2)):
            fused = draw(rows, 6 * size)  # query, key and value of 3, 2 and 1 heads side by side
            query = fused[:, : 3 * size].view(rows, 3, size)
            key = fused[:, 3 * size : 5 * size].view(rows, 2, size)
            table = draw(32, turning).float()
            positions = torch.arange(rows) * 5 % 32
            for interleaved in (False, True):
                yield query, key, table, positions, interleaved


def _recurrent_examples(op: str, draw: Draw) -> Iterator[tuple[Any, ...]]:
    """Yield stretches of sequences and what came before each."""
    for n, length in ((1, 1), (3, 1), (2, 5), (1, 70)):
        x = draw(n, length, 12)
        if op == "causal_conv":
            for bias in (draw(12), None):
                yield x, draw(n, 3, 12), draw(4, 12), bias, bias is None
            yield x, draw(n, 9, 12), draw(4, 12), None, True, 3
        elif op == "ssd_scan":
            step = draw(n, length, 4).float().exp()
            decay = -draw(4).float().exp()
            write = draw(n, length, 2, 8)
            read = draw(n, length, 2, 8)
            yield x.view(n, length, 4, 3), step, decay, write, read, draw(n, 4, 3, 8).float()
        elif op == "delta_scan":
            query, key = (
                torch.nn.functional.normalize(draw(n, length, 2, 8), dim=-1) for _ in range(2)
            )
            for decay in (draw(n, length, 4), draw(n, length, 4, 8)):
                write = draw(n, length, 4).sigmoid()
                state = draw(n, 4, 8, 3).float()
                given = x.view(n, length, 4, 3), -decay.float().abs(), write, state
                yield query, key, *given
                yield draw(n, length, 2, 8), draw(n, length, 2, 8), *given, 0.3
        else:
            step = x.float().exp()
            decay = -draw(12, 8).float().exp()
            yield x, step, decay, draw(n, length, 8), draw(n, length, 8), draw(n, 12, 8).float()
