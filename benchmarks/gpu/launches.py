"""Launches of a decode step on a GPU, by architecture, counted on a fake device.

    TRITON_INTERPRET=1 python -m benchmarks.gpu.launches [ARCHITECTURE ...]

Prints the rows of `launches.md`. A layer counts from its first norm to its last product.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.gpu.counting_gpu import MODEL, OUTSIDE, CountingGpu, Launch
from benchmarks.gpu.launch_table import HEAD, Launches
from core import LLM, SamplingParams
from core.testing.checkpoints import ARCHITECTURES, make_checkpoint

PLUGIN: Final = Path(__file__).with_name("counting_gpu_plugin.py")
NO_CPU: Final = ("no:ops_cpu", "no:quant_cpu_packed", "no:attention_paged")
"""Plugins of the CPU's kernels."""


def decode_step(architecture: str) -> list[Launch]:
    """Return the launches of the last decode step of a tiny model."""
    sampling = SamplingParams(temperature=0.7, seed=1, max_tokens=4, ignore_eos=True)
    CountingGpu.steps.clear()
    with tempfile.TemporaryDirectory() as temporary:
        folder = make_checkpoint(architecture, temporary)
        config = json.loads((folder / "config.json").read_text())
        # Indexers select nothing in shorter contexts.
        shortest = 3 + config.get("index_topk", 0)
        prompts = [{"prompt_token_ids": [*range(1, 1 + shortest + index)]} for index in range(2)]
        with LLM(
            str(folder),
            device="counting_gpu",
            dtype="bfloat16",
            plugins=[str(PLUGIN), *NO_CPU],
            max_num_seqs=2,
            max_model_len=32,
            num_gpu_blocks_override=16,
            skip_tokenizer_init=True,
            log_level="error",
        ) as llm:
            llm.generate(prompts, sampling, use_tqdm=False)
    return CountingGpu.steps[-1]


def summary(step: Sequence[Launch]) -> Launches:
    """Return the numbers of a step's launches."""
    by_place = Counter(launch.place for launch in step)
    layers = {count for place, count in by_place.items() if place not in (MODEL, OUTSIDE)}
    return Launches(tuple(sorted(layers)), by_place[MODEL], by_place[OUTSIDE], len(step))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("architectures", nargs="*", default=sorted(ARCHITECTURES))
    parser.add_argument("--names", action="store_true", help="print each launch")
    given = parser.parse_args()
    print(HEAD)
    for architecture in given.architectures:
        step = decode_step(architecture)
        print(summary(step).row(architecture), flush=True)
        if given.names:
            for launch in step:
                print(f"    {launch.place}: {launch.name}")


if __name__ == "__main__":
    main()
