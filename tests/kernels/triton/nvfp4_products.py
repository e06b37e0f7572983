"""Prints the matrix instructions of NVFP4's product, a line per target.

Run as a script, without `TRITON_INTERPRET`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from core_kernels.triton.nvfp4 import NvFp4Ops

from benchmarks.gpu import compiled

KINDS = ("tcgen05.mma", "wgmma", "mma.sync")


def main() -> None:
    texts: dict[str, str] = {}
    program_of = compiled.program_of

    def read(name: str, target: str, kernel: Any) -> compiled.Program:
        if name == "_block_scaled_product":
            texts[target] = kernel.asm["ptx"]
        return program_of(name, target, kernel)

    ops = NvFp4Ops()
    weight = ops.empty(256, 512, torch.bfloat16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "program_of", read)
        for target in ("sm_90", "sm_100", "sm_120"):
            with compiled.compiling(target) as programs:
                ops.linear(torch.empty(256, 512, dtype=torch.bfloat16), weight, 256)
            # For sm_90 codes are decoded first; no device of these selects the kernel.
            assert target == "sm_90" or not any(each.spilled_bytes for each in programs), programs
    for target, text in texts.items():
        kinds = [kind for kind in (*KINDS, "mxf4nvf4") if kind in text]
        print(target, *kinds)


if __name__ == "__main__":
    main()
