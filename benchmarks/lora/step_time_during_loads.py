"""Step times of running requests while adapters load, relative to steps without loading.

One engine with all rows decoding; phases alternate between loading one adapter after another (each
from its file) and none. A step time is the time between two tokens of a stream.

Run: python -m benchmarks.lora.step_time_during_loads [--model FOLDER] [--rows N] [--adapters N]
[--rank N] [--phases N] [--steps N]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from benchmarks.lora.bench_lora import SETTINGS, write_adapter
from benchmarks.peers.make_model import write_model
from builtin_plugins.features.lora.adapter_file import AdapterFiles
from builtin_plugins.features.lora.messages import AdapterRef
from builtin_plugins.features.lora.serving import load_adapter, unload_adapter
from core import AsyncLLM, LoRARequest, SamplingParams

HELD = 3


async def measure(
    engine: AsyncLLM, ref: list[AdapterRef], used: LoRARequest, args: argparse.Namespace
) -> None:
    """Run streams, and print the medians of both kinds of phases."""
    total = 2 * args.phases * args.steps + 2 * args.steps
    params = SamplingParams(temperature=0, max_tokens=total, ignore_eos=True, detokenize=False)
    times: list[float] = []

    async def stream(row: int) -> None:
        prompt = {"prompt_token_ids": [7 + (31 * row + at) % 1000 for at in range(16)]}
        adapter = used if row % 2 else None
        async for _ in engine.generate(prompt, params, str(row), lora_request=adapter):
            if row == 0:
                times.append(time.perf_counter())

    streams = asyncio.gather(*(stream(row) for row in range(args.rows)))
    found: dict[bool, list[float]] = {False: [], True: []}
    others = cycle(ref)
    num_loads = 0
    while len(times) < args.steps:  # all have started
        await asyncio.sleep(0.01)
    for phase in range(2 * args.phases):
        first = len(times)
        loads = bool(phase % 2)
        while len(times) < first + args.steps:
            if loads:
                own = next(others)
                await load_adapter(engine.call, own)
                await unload_adapter(engine.call, own)
                num_loads += 1
            else:
                await asyncio.sleep(0.002)
        own_times = times[first:]
        found[loads].append(1e3 * (own_times[-1] - own_times[0]) / (len(own_times) - 1))
    for row in range(args.rows):
        await engine.abort(str(row))
    await streams
    alone, loading = (statistics.median(found[kind]) for kind in (False, True))
    ratio = statistics.median(b / a for a, b in zip(found[False], found[True], strict=True))
    print(f"{args.rows} rows, {args.threads} threads, {num_loads} loads of rank {args.rank}")
    print(
        f"a step alone {alone:.2f} ms, while adapters are read {loading:.2f} ms, median of ratios "
        f"{ratio:.3f}"
    )


def main() -> None:
    """Create missing files, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, help="folder of a checkpoint with linear layers named as Llama's"
    )
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--phases", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = args.model or folder / "model"
        if args.model is None:
            write_model(model)
        ref = []
        for number in range(args.adapters + 1):
            own = folder / f"a{number}"
            write_adapter(model, own, args.rank, number)
            ref.append(
                AdapterRef(
                    AdapterFiles.read(own, 1 << 40).digest(), str(own.resolve()), f"a{number}"
                )
            )
        settings: dict[str, Any] = SETTINGS | {
            "max_num_seqs": args.rows,
            "num_threads": args.threads,
            "max_model_len": 64 + (2 * args.phases + 2) * args.steps,
        }
        engine = AsyncLLM(
            str(model),
            enable_lora=True,
            max_loras=2,
            max_cpu_loras=HELD,
            max_lora_rank=args.rank,
            **settings,
        )
        try:
            asyncio.run(measure(engine, ref[1:], LoRARequest("a0", 1, ref[0].folder), args))
        finally:
            engine.shutdown()


if __name__ == "__main__":
    main()
