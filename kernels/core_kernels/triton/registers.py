"""Options of launches on CUDA where the compiler would otherwise spill registers."""

from __future__ import annotations

from typing import Any, Final

import triton

from core_kernels.triton.launching import INTERPRETED

REGISTERS: Final = 65536
"""Registers of a multiprocessor."""
MAX_REGISTERS: Final = 255
"""Registers of a thread."""
LATENT_DECODE: Final = "_decode of latents"
FITTING_PROGRAMS: Final = {
    ("_attend", 89): 1,
    ("_attend", 120): 1,
    ("_gated_product", 100): 3,
    ("_product", 120): 4,
}
"""Programs of a kernel that the shared memory of a multiprocessor fits, by compute capability times
ten, where the compiler would spill registers to fit more.
"""
USAGE_LEVELS: Final = {
    **{(LATENT_DECODE, arch): 3 for arch in (80, 90, 100, 120)},
    ("_delta_chunks", 120): 10,
}
"""How freely `ptxas` uses registers, 0 to 10, where it spills some at 5, its default."""


def register_options(kernel: str, num_warps: int) -> dict[str, Any]:
    """Return the options of a launch by which its threads hold all numbers in registers."""
    if INTERPRETED:
        return {}
    arch = triton.runtime.driver.active.get_current_target().arch
    options: dict[str, Any] = {}
    programs = FITTING_PROGRAMS.get((kernel, arch))
    if programs is not None:
        options["maxnreg"] = min(MAX_REGISTERS, REGISTERS // (32 * num_warps * programs))
    level = USAGE_LEVELS.get((kernel, arch))
    if level is not None:
        options["ptx_options"] = f"--register-usage-level={level}"
    return options
