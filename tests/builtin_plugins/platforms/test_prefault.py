"""KV cache pages are pre-faulted before use, and no more than needed."""

from __future__ import annotations

import ctypes
import gc
import mmap
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from core_kernels.library import load_library

from builtin_plugins.platforms.cpu.prefault import STEPS, STRIPE, PrefaultedPages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs mincore of Linux")

PAGE = 4096


def taken_bytes(memory: torch.Tensor) -> int:
    """Return the resident bytes, by mincore(2)."""
    first = memory.data_ptr() // PAGE * PAGE
    pages = -(-(memory.data_ptr() + memory.numel() - first) // PAGE)
    states = (ctypes.c_ubyte * pages)()
    assert (
        ctypes.CDLL(None).mincore(ctypes.c_void_p(first), ctypes.c_size_t(pages * PAGE), states)
        == 0
    )
    return sum(state & 1 for state in states) * PAGE


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait without a limit; the test timeout ends a condition that never becomes true."""
    while not condition():
        time.sleep(0.005)


@pytest.fixture
def memories() -> list[torch.Tensor]:
    """Fresh pages; an allocator may return freed ones."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return [
        torch.frombuffer(mmap.mmap(-1, 16 * STRIPE, flags=flags), dtype=torch.uint8)
        for _ in range(2)
    ]


def test_prefault_touches_only_pages_ahead(memories: list[torch.Tensor]) -> None:
    library = load_library()
    assert library is not None
    ahead = PrefaultedPages(library, memories, 2 * 3 * STRIPE, 0)
    for memory in memories:
        wait_until(lambda memory=memory: taken_bytes(memory) >= 3 * STRIPE)
        assert taken_bytes(memory) < 6 * STRIPE  # a large page may reach beyond
    for memory in memories:
        memory[: 2 * STRIPE].fill_(7)
    for _ in range(STEPS):
        ahead.on_step(large=False)
    for memory in memories:
        wait_until(lambda memory=memory: taken_bytes(memory) >= 5 * STRIPE)
        assert taken_bytes(memory) < 8 * STRIPE
        assert bool((memory[: 2 * STRIPE] == 7).all())
        assert not memory[2 * STRIPE :].any()


def test_idle_process_prefaults_more_pages(memories: list[torch.Tensor]) -> None:
    library = load_library()
    assert library is not None
    ahead = PrefaultedPages(library, memories, 2 * STRIPE, 2 * 6 * STRIPE)
    while any(taken_bytes(memory) < 6 * STRIPE for memory in memories):
        time.sleep(0.1)  # polling without a pause would not be idle
    assert max(map(taken_bytes, memories)) < 9 * STRIPE
    del ahead


def test_prefault_thread_releases_memory_with_its_owner(memories: list[torch.Tensor]) -> None:
    library = load_library()
    assert library is not None
    ahead = PrefaultedPages(library, memories, STRIPE, STRIPE)
    gone = weakref.ref(memories[0])
    memories.clear()
    assert gone() is not None
    del ahead
    gc.collect()
    wait_until(lambda: gone() is None)


def test_freed_memory_stays_in_the_process(tmp_path: Path) -> None:
    """Runs in a fresh process, without freed memory of other tests."""
    program = tmp_path / "program.py"
    program.write_text(
        "import resource, torch\n"
        "from builtin_plugins.platforms.cpu.prefault import keep_freed_pages\n"
        "keep_freed_pages()\n"
        "step = lambda: [torch.ones(5 << 20) for _ in range(3)]\n"
        "for _ in range(12): step()\n"  # where pieces lie settles
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(4): step()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", str(program)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 4 * 3 * (20 << 20) // PAGE // 10


def test_process_exits_while_prefault_thread_runs(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np, torch\n"
        "from core_kernels.library import load_library\n"
        "from builtin_plugins.platforms.cpu.prefault import PrefaultedPages\n"
        "memories = [torch.from_numpy(np.zeros(1 << 28, dtype=np.uint8)) for _ in range(4)]\n"
        "ahead = PrefaultedPages(load_library(), memories, 1 << 30, 1 << 30)\n"
    )
    subprocess.run([sys.executable, "-P", str(program)], check=True)
