"""Prints, as JSON lines, what the static audit says of a target, compute capability 9.0 by default.

Run as a script, without `TRITON_INTERPRET`.
"""

from __future__ import annotations

import json
import sys

from benchmarks.gpu.static import audit


def main() -> None:
    for model, program in audit(*sys.argv[1:] or ["sm_90"]):
        print(
            json.dumps(
                {
                    "model": model,
                    "kernel": program.kernel,
                    "spilled_bytes": program.spilled_bytes,
                    "resident": program.resident,
                    "narrow_reads": program.narrow_reads,
                    "widest_read": max(program.loads + program.copies, default=0),
                    "products": program.products,
                }
            )
        )


if __name__ == "__main__":
    main()
