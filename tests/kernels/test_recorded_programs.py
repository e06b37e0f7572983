"""A recorded function does the same again on other numbers, in memory of its own, or says why it
cannot.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from core_kernels import elementwise
from core_kernels.arena import Allocation, Arena, ProgramMemory
from core_kernels.attention import AttentionStep
from core_kernels.elementwise import ElementOps
from core_kernels.library import load_library
from core_kernels.packed import PackedOps
from core_kernels.program import Program, Unrecordable
from core_kernels.recording import OpaqueValue, Recording
from core_kernels.row_ops import SILU, RowOps
from hypothesis import given
from hypothesis import strategies as st

LIBRARY = load_library()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C++ library on this machine")

Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def library() -> Iterator[ctypes.CDLL]:
    assert LIBRARY is not None
    torch.manual_seed(0)
    with torch.inference_mode():
        yield LIBRARY
    assert LIBRARY.listener is None


def record(
    library: ctypes.CDLL, function: Function, x: torch.Tensor
) -> tuple[Recording, torch.Tensor]:
    recording = Recording(library)
    with recording:
        out = function(x)
    return recording, out


def again(
    library: ctypes.CDLL, function: Function, x: torch.Tensor, other: torch.Tensor
) -> torch.Tensor:
    """Record the function on x; return the program's output for other values in the same memory."""
    recording, out = record(library, function, x)
    first = out.clone()
    program = Program(library, recording, (), out)
    del recording, out
    assert torch.equal(program.run(()), first)
    x.copy_(other)
    return program.run(())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_recorded_layer_replays_bitwise(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    packed = PackedOps(library)
    rows = RowOps(library)
    elements = ElementOps(library)
    up = packed.empty(96, 40, dtype)
    down = packed.empty(40, 48, dtype)
    packed.pack(up, 96, 0, torch.randn(96, 40))
    packed.pack(down, 40, 0, torch.randn(40, 48))
    norm = torch.rand(40).to(dtype)
    bias = torch.randn(96).to(dtype)

    def layer(x: torch.Tensor) -> torch.Tensor:
        normed = rows.rms_norm(x * 0.5, norm, 1e-6, 0.0)
        assert normed is not None
        inner = packed.linear(normed, up, 96).add_(bias)
        acted = rows.gated(inner, SILU)
        assert acted is not None
        out = packed.linear(acted, down, 40) + x
        to_signed = elements.layer_norm(out.view(-1, 4, 10), None, None, 1e-5)
        assert to_signed is not None
        both = (to_signed * torch.relu(to_signed)).view(-1, 40)
        both[:, :20].add_(both[:, 20:])
        return both

    x = torch.randn(5, 40).to(dtype)
    other = torch.randn(5, 40).to(dtype)
    expected = layer(other.clone())
    assert torch.equal(again(library, layer, x, other), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1.5,
        lambda x: 3 * x,
        lambda x: x + x[0],
        lambda x: x[:1] * x,
        lambda x: x * x[:, :1],
        lambda x: x[:, 3:7] + x[:, 1:5],
        lambda x: x.view(4, 3, 4) * x[0].view(3, 4),
        lambda x: x.relu(),
        lambda x: x.square(),
    ],
)
def test_exact_torch_ops_are_recorded_bitwise(
    library: ctypes.CDLL, function: Function, dtype: torch.dtype
) -> None:
    x = torch.randn(4, 12).to(dtype)
    other = torch.randn(4, 12).to(dtype)
    other[0, 0] = float("inf")
    other[1, 1] = float("nan")
    expected = function(other)
    torch.testing.assert_close(
        again(library, function, x, other), expected, rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.softmax(-1), "aten.softmax"),
        (lambda x: x.add(x, alpha=2), "aten.add"),
        (lambda x: x[x[:, 0] > 0], "aten"),
        (lambda x: x.t().contiguous(), "aten"),
        (lambda x: x.double() + 1, "aten"),
    ],
)
def test_unsupported_torch_op_is_unrecordable(
    library: ctypes.CDLL, function: Function, reason: str
) -> None:
    recording, out = record(library, function, torch.randn(4, 4))
    with pytest.raises(Unrecordable, match=reason):
        Program(library, recording, (), out)


def test_preexisting_result_is_unrecordable(library: ctypes.CDLL) -> None:
    preexisting = torch.zeros(3)
    recording, out = record(library, lambda x: preexisting.add_(x), torch.ones(3))
    with pytest.raises(Unrecordable, match="preexisting"):
        Program(library, recording, (), out)


@pytest.mark.parametrize(
    "read", [list, len, bool, lambda value: value[0], torch.tensor, lambda value: value.index(1)]
)
def test_reading_step_values_is_unrecordable(
    library: ctypes.CDLL, read: Callable[[object], object]
) -> None:
    recording = Recording(library)
    untold = OpaqueValue("counts", [1, 2], recording)
    assert isinstance([untold], list)
    assert recording.refused == ""
    found = read(untold)
    expected = read([1, 2])
    assert torch.equal(found, expected) if isinstance(expected, torch.Tensor) else found == expected
    assert "counts" in recording.refused


def test_programs_share_memory_of_the_largest(library: ctypes.CDLL) -> None:
    room = ProgramMemory()
    programs = []
    for rows in (3, 9, 2):
        x = torch.randn(rows, 8)
        recording, out = record(library, lambda x: (x + 1) * 2, x)
        programs.append((Program(library, recording, (), out, room), x))
    for program, x in [*programs, *programs]:
        assert torch.equal(program.run(()), (x + 1) * 2)
    second, third = (program.run(()).untyped_storage().data_ptr() for program, _ in programs[1:])
    assert second == third


def test_recording_does_not_import_torch_compiler() -> None:
    """It takes seconds, and would do so in the middle of a step."""
    script = """
import sys
import torch
from core_kernels.library import load_library
from core_kernels.recording import Recording

with Recording(load_library()):
    torch.ones(2) + 1
print("torch._dynamo" in sys.modules)
"""
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "False"


def test_recording_ignores_other_threads(library: ctypes.CDLL) -> None:
    elements = ElementOps(library)
    x = torch.randn(3, 8)
    other = torch.zeros(5)

    def both(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=elements.unary, args=(other, elementwise.RELU))
        thread.start()
        thread.join()
        return x + 1

    recording, _ = record(library, both, x)
    assert [name for name, _ in recording.calls] == ["core_elementwise"]
    assert recording.refused == ""


def test_out_of_range_id_fails_one_run_only(library: ctypes.CDLL) -> None:
    elements = ElementOps(library)
    table = torch.randn(7, 5)

    def look_up(ids: torch.Tensor) -> torch.Tensor:
        rows = elements.take(table, ids)
        assert rows is not None
        return rows

    ids = torch.tensor([1, 2])
    recording, out = record(library, look_up, ids)
    program = Program(library, recording, (), out)
    for wrong in (-1, 7, 1 << 40):
        ids[1] = wrong
        with pytest.raises(IndexError, match="no row"):
            program.run(())
        with pytest.raises(IndexError):
            look_up(ids)
    ids[1] = 6
    assert torch.equal(program.run(()), table[[1, 6]])


def test_replayed_attention_uses_the_given_plan(library: ctypes.CDLL) -> None:
    heads = 4
    kv_heads = 2
    size = 16
    block = 16
    caches = [torch.zeros(9, kv_heads, 2, block, size) for _ in range(2)]

    def plan(lengths: list[int]) -> AttentionStep:
        tables = torch.tensor([[1, 2], [5, 4]], dtype=torch.int32)
        slots = torch.tensor(
            [
                int(tables[i, (n - 1) // block]) * block + (n - 1) % block
                for i, n in enumerate(lengths)
            ]
        )
        return AttentionStep(library, [0, 1, 2], lengths, tables, slots, block)

    def layers(x: torch.Tensor, step: AttentionStep, own: list[torch.Tensor]) -> torch.Tensor:
        for cache in own:
            query, key, value = x.split([heads, kv_heads, kv_heads], dim=1)
            out = step.attend(query, key, value, cache, scale=0.3)
            x = x.view(2, -1) * 0.5 + out.view(2, -1)[:, :1]
            x = x.view(2, -1, size)
        return out

    x = torch.randn(2, heads + 2 * kv_heads, size)
    other = [cache.clone() for cache in caches]
    recording = Recording(library)
    first = plan([1, 17])
    with recording:
        out = layers(x, first, caches)
    program = Program(library, recording, (first, first), out)
    assert torch.equal(program.run((first, first)), layers(x, plan([1, 17]), other))
    for lengths in ([2, 18], [3, 19], [17, 20]):
        x.copy_(torch.randn_like(x))
        step = plan(lengths)
        assert torch.equal(program.run((step, step)), layers(x, plan(lengths), other))
    x.copy_(torch.randn_like(x))
    other_plan = plan(
        [4, 20]
    )  # of a layer that is not the model's: a guesser's, which a step of trees plans for itself
    assert torch.equal(
        program.run((plan([18, 21]), other_plan, other_plan)), layers(x, plan([18, 21]), other)
    )
    assert all(torch.equal(cache, copy) for cache, copy in zip(caches, other, strict=True))
    with pytest.raises(Unrecordable, match="none of the step's"):
        Program(library, recording, (), out)


@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.integers(0, 20), st.integers(0, 6)),
        min_size=1,
        max_size=40,
    )
)
def test_live_allocations_do_not_overlap(
    pieces: list[tuple[int, int, int]],
) -> None:
    made = [torch.empty(size, dtype=torch.uint8) for size, _, _ in pieces]
    uses: list[list[int]] = [[] for _ in range(28)]
    for tensor, (_, first, length) in zip(made, pieces, strict=True):
        for call in range(first, first + length + 1):
            uses[call].append(tensor.data_ptr())
    taken = [Allocation(0, tensor.data_ptr(), tensor.nbytes) for tensor in made]
    arena = Arena(taken, uses, made[0].data_ptr(), ProgramMemory())
    moved = [
        arena.relocate(first, tensor.data_ptr())
        for tensor, (_, first, _) in zip(made, pieces, strict=True)
    ]
    lives = [
        (first, 28 if i == 0 else first + length) for i, (_, first, length) in enumerate(pieces)
    ]
    for i, one in enumerate(made):
        assert moved[i] % 64 == 0
        for j in range(i):
            if lives[i][0] <= lives[j][1] and lives[j][0] <= lives[i][1]:
                assert moved[i] + one.nbytes <= moved[j] or moved[j] + made[j].nbytes <= moved[i]
    assert arena.nbytes < sum(-(-tensor.nbytes // 64) * 64 for tensor in made) + 64


def test_reused_address_is_a_new_allocation() -> None:
    """The second and third take, in part or whole, what was free again; the fourth is no memory of
    the function.
    """
    taken = [Allocation(0, 1000, 100), Allocation(2, 1040, 20), Allocation(3, 1000, 100)]
    arena = Arena(taken, [[1000, 1050], [1050], [1050, 1000], [1050], [5]], 1099, ProgramMemory())
    first = arena.relocate(0, 1000)
    third = arena.relocate(3, 1050) - 50
    assert arena.relocate(0, 1050) == arena.relocate(1, 1050) == first + 50
    assert arena.relocate(2, 1000) == 1000
    assert arena.relocate(4, 5) == 5
    assert arena.relocate(-1, 1099) == third + 99
    assert arena.nbytes <= 256


def test_unary_functions_match_torch() -> None:
    assert LIBRARY is not None
    elements = ElementOps(LIBRARY)
    x = torch.linspace(-9, 9, 1001)
    for kind, exact in (
        (elementwise.GELU, torch.nn.functional.gelu),
        (elementwise.GELU_TANH, lambda v: torch.nn.functional.gelu(v, approximate="tanh")),
        (elementwise.SILU, torch.nn.functional.silu),
        (elementwise.RELU, torch.relu),
    ):
        for dtype in DTYPES:
            found = elements.unary(x.to(dtype), kind)
            assert found is not None
            expected = exact(x.to(dtype).double())
            tolerance = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]
            torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
