"""Round trip of a plan over ranks of each launcher: from `submit` to the end of `collect`.

Both launchers run in turns on the same machine. The plan has one decode row of a small model, so
that the channels have a large share.

Run: python benchmarks/launchers/plan_round_trip.py [--rounds N] [--steps N]; needs engine-ray.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from core import LLM, SamplingParams
from core.testing.checkpoints import make_checkpoint

NODE = {"num_cpus": 2, "object_store_memory": 100 << 20}


@contextmanager
def two_nodes() -> Iterator[str]:
    """Yield the address of a local cluster."""
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        cluster.add_node(**NODE)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


def round_trips(folder: Path, ranks: int, steps: int, **settings: Any) -> list[float]:
    """Return the milliseconds of each plan, after a warm-up."""
    with LLM(
        str(folder),
        tensor_parallel_size=ranks,
        dtype="float32",
        max_model_len=512,
        kv_cache_memory_bytes=1 << 25,
        num_threads=1,
        async_scheduling=False,
        log_level="error",
        **settings,
    ) as llm:
        llm.generate([[5, 7, 9]], SamplingParams(max_tokens=50, ignore_eos=True), use_tqdm=False)
        executor: Any = llm.core.executor
        submit = executor.submit
        collect = executor.collect
        started: deque[float] = deque()
        found: list[float] = []

        def timed_submit(plan: Any) -> None:
            started.append(time.perf_counter())
            submit(plan)

        def timed_collect() -> Any:
            result = collect()
            found.append((time.perf_counter() - started.popleft()) * 1e3)
            return result

        executor.submit = timed_submit
        executor.collect = timed_collect
        sampling = SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True)
        llm.generate([[5, 7, 9]], sampling, use_tqdm=False)
        return found


def main() -> None:
    """Measure in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=450)
    arguments = parser.parse_args()
    print("| ranks | mp, ms | ray, ms | ratio of medians | of each round |")
    print("| ---: | ---: | ---: | ---: | --- |")
    with tempfile.TemporaryDirectory() as name, two_nodes() as address:
        folder = make_checkpoint("LlamaForCausalLM", Path(name) / "model", seed=1)
        ray_settings = {
            "plugins": ["+engine_ray.plugin", "no:structured_outputs"],
            "distributed_executor_backend": "ray",
            "ray_address": address,
            "ray_placement_strategy": "SPREAD",
        }
        mp_settings = {"plugins": ["no:structured_outputs"], "distributed_executor_backend": "mp"}
        for ranks in (1, 2):
            medians: dict[str, list[float]] = {"mp": [], "ray": []}
            for _ in range(arguments.rounds):
                for launcher, settings in (("mp", mp_settings), ("ray", ray_settings)):
                    found = round_trips(folder, ranks, arguments.steps, **settings)
                    medians[launcher].append(statistics.median(found))
            local = statistics.median(medians["mp"])
            remote = statistics.median(medians["ray"])
            ratios = [b / a for a, b in zip(medians["mp"], medians["ray"], strict=True)]
            each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            print(
                f"| {ranks} | {local:.2f} | {remote:.2f} | {remote / local:.2f} | {each} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
