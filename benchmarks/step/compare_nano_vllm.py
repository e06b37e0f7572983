"""Scheduler and KV manager compared with nano-vllm's, interleaved in one process.

nano-vllm is not part of this repository: give the folder of a checkout. Its files
`engine/scheduler.py`, `engine/block_manager.py` and `engine/sequence.py` are used unchanged; its
configuration is replaced by a plain object. Both use blocks of 16 tokens. It needs numpy and
xxhash; without xxhash, BLAKE2 of hashlib is used and reported.

Both keep the same number of requests with prompts of 64 random tokens running. Steady: all decode;
median and mean time per turn and request. Arrivals: one of a hundred requests ends per step and
another arrives; time of all turns per generated token, since nano-vllm separates prefill and decode
steps. A turn is: add arrivals, schedule, apply one token for each.

Run: python benchmarks/step/compare_nano_vllm.py NANO_VLLM_FOLDER [--running N ...] [--rounds N]
[--steps N]
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import random
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core.kv import KVManager, plan_layout
from core.model_spec.kv import FullAttention, LayerKV
from core.scheduler import Scheduler, SchedulerLimits
from core.step import EngineRequest, StepResult
from core.types import SamplingParams

BLOCK = 16
PROMPT = 64
LIFE = 100
WARMUP = 40
CONTEXT = 1024
BUDGET = 8192
EOS = 0
TOKEN = 7
TARGET = 10.0


class Ours:
    """This engine's scheduler and KV manager."""

    name = "this engine"

    def __init__(self, rows: int) -> None:
        layer = LayerKV("0", FullAttention(8, 128, "bfloat16"))
        layout = plan_layout(
            [layer],
            block_size=BLOCK,
            memory_bytes=0,
            num_blocks=rows * CONTEXT // BLOCK + 64,
            max_model_len=CONTEXT,
            max_num_seqs=rows,
        )
        self.scheduler = Scheduler(
            SchedulerLimits(max(BUDGET, rows), rows, CONTEXT), KVManager(layout)
        )
        self._names = iter(range(1 << 60))

    def make(self, prompt: list[int], max_tokens: int) -> Any:
        """Return a request."""
        return EngineRequest(
            request_id=str(next(self._names)),
            prompt_token_ids=prompt,
            sampling=SamplingParams(max_tokens=max_tokens),
            seed=0,
            max_tokens=max_tokens,
            eos_token_ids=(EOS,),
        )

    def add(self, request: Any) -> None:
        """Add a request."""
        self.scheduler.add(request)

    @property
    def num_open(self) -> int:
        """Number of waiting or running requests."""
        return self.scheduler.num_running + self.scheduler.num_waiting

    def schedule(self) -> Any:
        """Return the next step."""
        return self.scheduler.schedule()

    def answer(self, plan: Any) -> Any:
        """Return a fake worker result."""
        rows = [*plan.decode_rows, *(plan.rows[i] for i in plan.samples)]
        return StepResult(plan.step, rows, [TOKEN] * len(rows))

    def update(self, plan: Any, result: Any) -> int:
        """Apply a result; return the number of tokens."""
        return len(self.scheduler.update(result))


class Nano:
    """nano-vllm's scheduler and block manager."""

    name = "nano-vllm"

    def __init__(self, rows: int, parts: types.SimpleNamespace) -> None:
        config = types.SimpleNamespace(
            max_num_seqs=rows,
            max_num_batched_tokens=max(BUDGET, rows),
            eos=EOS,
            kvcache_block_size=BLOCK,
            num_kvcache_blocks=rows * CONTEXT // BLOCK + 64,
        )
        self.scheduler = parts.Scheduler(config)
        self._parts = parts

    def make(self, prompt: list[int], max_tokens: int) -> Any:
        """Return a request."""
        return self._parts.Sequence(prompt, self._parts.SamplingParams(max_tokens=max_tokens))

    def add(self, request: Any) -> None:
        """Add a request."""
        self.scheduler.add(request)

    @property
    def num_open(self) -> int:
        """Number of waiting or running requests."""
        return len(self.scheduler.running) + len(self.scheduler.waiting)

    def schedule(self) -> Any:
        """Return the next step."""
        return self.scheduler.schedule()

    def answer(self, plan: Any) -> Any:
        """Return a fake model runner result."""
        return [TOKEN] * len(plan[0])

    def update(self, plan: Any, result: Any) -> int:
        """Apply a result; return the number of tokens."""
        sequences, is_prefill = plan
        self.scheduler.postprocess(sequences, result, is_prefill)
        return len(sequences)


def load_nano(folder: Path) -> tuple[types.SimpleNamespace, str]:
    """Import the files of a checkout; return the classes and the replacements."""
    home = folder / "nanovllm"
    if not (home / "engine" / "scheduler.py").is_file():
        sys.exit(f"{folder} is no checkout of nano-vllm: there is no nanovllm/engine/scheduler.py.")
    note = "xxhash as it is"
    try:
        import xxhash  # noqa: F401 - lazy: optional, used by nano-vllm
    except ModuleNotFoundError:
        sys.modules["xxhash"] = _blake2_as_xxhash()
        note = "xxhash is not installed, BLAKE2 stands in"
    for name, path in (("nanovllm", home), ("nanovllm.engine", home / "engine")):
        package = types.ModuleType(name)
        package.__path__ = [str(path)]  # without the package's imports, which need CUDA
        sys.modules[name] = package
    config: Any = types.ModuleType("nanovllm.config")
    config.Config = types.SimpleNamespace
    sys.modules["nanovllm.config"] = config
    from nanovllm.engine.scheduler import (
        Scheduler as NanoScheduler,
    )  # lazy: after the setup above
    from nanovllm.engine.sequence import Sequence
    from nanovllm.sampling_params import SamplingParams as NanoParams

    Sequence.block_size = BLOCK
    return types.SimpleNamespace(
        Scheduler=NanoScheduler, Sequence=Sequence, SamplingParams=NanoParams
    ), note


def _blake2_as_xxhash() -> Any:
    class Xxh64:
        def __init__(self) -> None:
            self._hash = hashlib.blake2b(digest_size=8)
            self.update = self._hash.update

        def intdigest(self) -> int:
            return int.from_bytes(self._hash.digest(), "little")

    module: Any = types.ModuleType("xxhash")
    module.xxh64 = Xxh64
    return module


def drive(side: Any, rows: int, steps: int, seed: int, *, arrivals: bool) -> tuple[float, float]:
    """Run a round; return microseconds per request of the median turn, and per token overall."""
    rng = random.Random(seed)

    def request(max_tokens: int) -> Any:
        return side.make([rng.randrange(1, 50_000) for _ in range(PROMPT)], max_tokens)

    for i in range(rows):
        # With arrivals the ends are spread evenly; otherwise there are none.
        side.add(request(WARMUP + 1 + i * LIFE // rows if arrivals else WARMUP + steps + 1))
    for _ in range(WARMUP):
        plan = side.schedule()
        side.update(plan, side.answer(plan))
    times = []
    tokens = 0
    gc.collect()
    gc.freeze()
    for _ in range(steps):
        arriving = [request(LIFE) for _ in range(rows - side.num_open)]
        started = time.perf_counter()
        for one in arriving:
            side.add(one)
        plan = side.schedule()
        planned = time.perf_counter()
        result = side.answer(plan)
        answered = time.perf_counter()
        tokens += side.update(plan, result)
        times.append(time.perf_counter() - answered + planned - started)
    gc.unfreeze()
    return 1e6 * statistics.median(times) / rows, 1e6 * sum(times) / tokens


def main() -> None:
    """Measure and print one line per number of running requests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="checkout of nano-vllm")
    parser.add_argument("--running", type=int, nargs="+", default=[1, 64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    parts, note = load_nano(args.folder.resolve())
    sides: list[Callable[[int], Any]] = [Ours, lambda rows: Nano(rows, parts)]
    print(
        f"microseconds, medians of {args.rounds} interleaved rounds of {args.steps} steps; {note}"
    )
    print(
        f"{'':>8} {'steady, median, a request':^32} {'steady, mean, a token':^32} "
        f"{'1 % arrivals, a token':^32}"
    )
    print(f"{'running':>8} " + 3 * f"{'ours':>10} {'nano-vllm':>11} {'ratio':>9} ")
    for rows in args.running:
        cells = []
        for arrivals in (False, True):
            found: list[list[tuple[float, float]]] = [[], []]
            for turn in range(args.rounds):
                for index in (0, 1) if turn % 2 else (1, 0):
                    found[index].append(
                        drive(sides[index](rows), rows, args.steps, turn, arrivals=arrivals)
                    )
            for kind in (1,) if arrivals else (0, 1):
                ours, nano = (
                    statistics.median(figures[kind] for figures in side) for side in found
                )
                cells.append(f"{ours:>10.3f} {nano:>11.3f} {nano / ours:>8.2f}x")
        print(f"{rows:>8} {' '.join(cells)}", flush=True)
    print(f"The ratio to reach is {TARGET:g}.")


if __name__ == "__main__":
    main()
