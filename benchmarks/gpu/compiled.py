"""Programs of Triton kernels for a GPU that need not be there, and what their machine code says.

Each launch is compiled for a target and not made. Needs `TRITON_INTERPRET=0`.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import triton
from core_kernels.triton.autotune import Autotuner, LaunchConfig, Shape
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

TARGETS: Final = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


@dataclass(frozen=True, slots=True)
class Processor:
    """Limits of one multiprocessor (AMD: of one compute unit)."""

    registers: int
    """32-bit registers of all its threads."""
    shared_bytes: int
    threads: int
    """Threads at a time."""
    programs: int
    """Programs at a time."""


PROCESSORS: Final = {
    "sm_80": Processor(65536, 164 << 10, 2048, 32),
    "sm_89": Processor(65536, 100 << 10, 1536, 24),
    "sm_90": Processor(65536, 228 << 10, 2048, 32),
    "sm_100": Processor(65536, 228 << 10, 2048, 32),
    "sm_120": Processor(65536, 100 << 10, 1536, 24),
    "gfx942": Processor(131072, 64 << 10, 2048, 32),
}
"""Source: CUDA C++ Programming Guide, table of compute capabilities; AMD CDNA 3 ISA guide."""
RESERVED_SHARED_BYTES: Final = 1 << 10
"""Shared memory that CUDA adds to each program."""
VECTOR_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Program:
    """One compiled launch."""

    kernel: str
    target: str
    num_warps: int
    registers: int
    """Per thread."""
    spilled_bytes: int
    """Per thread."""
    shared_bytes: int
    loads: Counter[int]
    """Loads of global memory in the code, by bytes of one thread."""
    copies: Counter[int]
    """Asynchronous copies to shared memory, by bytes of one thread."""
    stores: Counter[int]
    products: tuple[str, ...]
    """Kinds of matrix instructions."""

    @property
    def resident(self) -> int:
        """Programs that a multiprocessor runs at a time."""
        limits = PROCESSORS[self.target]
        threads = self.num_warps * TARGETS[self.target].warp_size
        unit = 8  # registers of a thread are allocated in units
        registers = -(-max(1, self.registers) // unit) * unit * threads
        is_cuda = TARGETS[self.target].backend == "cuda"
        shared = max(1, self.shared_bytes + RESERVED_SHARED_BYTES * is_cuda)
        return min(
            limits.programs,
            limits.threads // threads,
            limits.registers // registers,
            limits.shared_bytes // shared,
        )

    @property
    def narrow_reads(self) -> int:
        """Reads of one or two bytes: elements of weights, caches or activations one by one."""
        reads = self.loads + self.copies
        return reads[1] + reads[2]


class NoDevice:
    """The driver interface that Triton uses."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        """Return a number of the target: programs are remembered by it."""
        return [*TARGETS.values()].index(self._target)

    def get_current_stream(self, device: int = 0) -> int:
        return 0


@contextmanager
def compiling(target: str, *, all_configs: bool = False) -> Iterator[list[Program]]:
    """Compile each launch for a target instead of making it; yield the programs.

    `all_configs`: with every configuration of the autotuner, not only the first.
    """
    run = JITFunction.run
    tuned = Autotuner.launch
    programs: dict[str, Program] = {}
    found: list[Program] = []

    def only_compiled(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = run(self, *args, **{**kwargs, "warmup": True})
        if kernel.hash not in programs:
            programs[kernel.hash] = program_of(self.__name__, target, kernel)
            found.append(programs[kernel.hash])
        return kernel

    def launch_each(
        self: Autotuner,
        device: torch.device,
        shape: Shape,
        launch: Callable[[LaunchConfig], object],
    ) -> None:
        del device, shape
        for config in self.configs[: None if all_configs else 1]:
            launch(config)

    triton.runtime.driver.set_active(NoDevice(TARGETS[target]))
    JITFunction.run = only_compiled
    Autotuner.launch = launch_each  # type: ignore[method-assign]
    try:
        yield found
    finally:
        JITFunction.run = run
        Autotuner.launch = tuned  # type: ignore[method-assign]


def program_of(name: str, target: str, kernel: Any) -> Program:
    """Read what a compiled kernel's code says."""
    is_cuda = TARGETS[target].backend == "cuda"
    registers, spilled = cuda_resources(kernel) if is_cuda else amd_resources(kernel)
    text = kernel.asm["ptx" if is_cuda else "amdgcn"]
    count = cuda_accesses if is_cuda else amd_accesses
    loads, copies, stores = count(text)
    return Program(
        name,
        target,
        kernel.metadata.num_warps,
        registers,
        spilled,
        kernel.metadata.shared,
        loads,
        copies,
        stores,
        products_of(text),
    )


def cuda_resources(kernel: Any) -> tuple[int, int]:
    """Return registers and spilled bytes per thread of a cubin."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        done = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        )
    used = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", done.stdout)}
    return used["REG"], used["STACK"] + used["LOCAL"]


def amd_resources(kernel: Any) -> tuple[int, int]:
    """Return vector registers and spilled bytes per thread."""
    text = kernel.asm["amdgcn"]

    def stated(field: str) -> int:
        found = re.search(rf"\.{field}:\s+(\d+)", text)
        return int(found[1]) if found else 0

    registers = stated("vgpr_count") + stated("agpr_count")
    return registers, 4 * stated("vgpr_spill_count") + stated("private_segment_fixed_size")


_PTX_ACCESS: Final = re.compile(
    r"\b(ld|st)\.(?:volatile\.)?global(?:\.\w+(?:::\w+)*)*?(?:\.v(\d))?\.[bfsu](\d+)\b"
)
_PTX_COPY: Final = re.compile(
    r"cp\.async\.\w+\.shared\S*\.global\S*\s+\[[^\]]+\],\s*\[[^\]]+\],\s*(0x\w+|\d+)"
)
_AMD_ACCESS: Final = re.compile(
    r"\b(?:global|buffer|flat)_(load|store)_(dwordx?(\d?)|[us]?byte\w*|[us]?short\w*)(.*)"
)


def cuda_accesses(text: str) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """Return loads, asynchronous copies and stores of global memory by bytes per thread."""
    loads: Counter[int] = Counter()
    stores: Counter[int] = Counter()
    for kind, vector, bits in _PTX_ACCESS.findall(text):
        size = int(vector or 1) * int(bits) // 8
        (loads if kind == "ld" else stores)[size] += 1
    copies = Counter(int(size, 0) for size in _PTX_COPY.findall(text))
    return loads, copies, stores


def amd_accesses(text: str) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """Return loads, copies to shared memory and stores by bytes per thread."""
    loads: Counter[int] = Counter()
    copies: Counter[int] = Counter()
    stores: Counter[int] = Counter()
    for kind, what, words, rest in _AMD_ACCESS.findall(text):
        size = 4 * int(words or 1) if what.startswith("dword") else 1 if "byte" in what else 2
        to_shared = bool(re.search(r"\blds\b", rest))
        (stores if kind == "store" else copies if to_shared else loads)[size] += 1
    return loads, copies, stores


def products_of(text: str) -> tuple[str, ...]:
    """Return the kinds of matrix instructions in a code; `scaled`: with scales of blocks."""
    kinds = ("tcgen05.mma", "wgmma", "mma.sync", "v_mfma")
    found = [kind for kind in kinds if kind in text]
    scaled = [kind for kind in found if re.search(rf"{kind}\S*block_scale", text)]
    integer = [kind for kind in found if re.search(rf"{kind}\S*(\.s8|kind::i8|i32_\S*i8)", text)]
    return (
        *found,
        *(f"{kind} scaled" for kind in scaled),
        *(f"{kind} int8" for kind in integer),
    )
