"""Several engines of one client: what a death costs, and how requests are shared.

Parts, all of them by default:

- `cost`: processor time of the balancer for a request, with 2 and 8 engines.
- `shares`: 64 equal requests at once over 4 engines.
- `hits`: 50 conversations of 8 turns over 4 engines, next to one cache.
- `gaps`: the worst gap in 64 streams over `--engines` without kills, and with 20 kills.
- `steps`: median step of one engine while the other one is killed again and again, at equal rows.
- `throughput`: requests per second of two engines next to one engine with two threads.

`steps` and `gaps` use the scripted model with steps of 5 ms; `throughput` uses a random model.
Ratios are of rounds taken in turns in one run.

Run: python benchmarks/data_parallel/several_engines.py [PART ...]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from builtin_plugins.clients.balancing import Balancer
from core import AsyncLLM, SamplingParams
from core.api.kv import chain_root, extend_chain
from core.api.telemetry import StepStats
from core.testing.checkpoints import make_checkpoint
from core.types import RequestOutputKind

STEP_S: Final = 0.005
KEY_TOKENS: Final = 64
SHAPE: Final[dict[str, Any]] = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "head_dim": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8000,
    "torch_dtype": "bfloat16",
}


class Steps:
    """Metric sink that keeps the steps of each engine."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, float]] = []
        """Engine, rows and seconds of each step that decodes one token of every row."""

    def step(self, stats: StepStats) -> None:
        """Keep one step."""
        if stats.step_s and stats.computed_tokens == stats.num_running:
            self.steps.append((stats.engine, stats.num_running, stats.step_s))


@contextmanager
def running(model: str, size: int, **settings: Any) -> Iterator[AsyncLLM]:
    """Start engines; stop them at the end."""
    defaults = {
        "num_threads": 1,
        "log_level": "error",
        "max_restarts": 1000,
        "structured_outputs_config": {"warm_up": False},
    }
    engine = AsyncLLM(model, data_parallel_size=size, **{**defaults, **settings})
    try:
        yield engine
    finally:
        engine.shutdown()


def scripted(size: int, **settings: Any) -> Any:
    """Start engines of the scripted model with steps of 5 ms."""
    return running("scripted:", size, scripted_tokens_per_second=1 / STEP_S, **settings)


def processes(engine: AsyncLLM) -> list[Any]:
    """Return the process of each engine."""
    client: Any = engine._client
    if not hasattr(client, "engines"):
        return [client.child]
    return [each.supervised.child for each in client.engines]


def cpu_s(engine: AsyncLLM) -> float:
    """Return the processor time of all engine processes, in seconds."""
    ticks = 0
    for process in processes(engine):
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def states(engine: AsyncLLM) -> list[str]:
    """Return the state of each engine."""
    return [each["status"] for each in engine.health()["engines"]]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    while not condition():
        await asyncio.sleep(0.002)


async def stream(
    engine: AsyncLLM, prompt: Any, name: str, count: int, **fields: Any
) -> list[float]:
    """Run a request of `count` tokens; return the time of each delivery."""
    params = SamplingParams(
        temperature=0.0,
        max_tokens=count,
        min_tokens=count,
        ignore_eos=True,
        output_kind=RequestOutputKind.DELTA,
    )
    times = []
    async for _ in engine.generate(prompt, params, name, **fields):
        times.append(time.monotonic())
    return times


def worst_gap(times: Sequence[Sequence[float]]) -> float:
    """Return the longest time between two deliveries of a stream, in seconds."""
    return max(after - before for each in times for before, after in pairwise(each))


@asynccontextmanager
async def repeated_kills(engine: AsyncLLM, count: int, ranks: Sequence[int]) -> AsyncIterator[None]:
    """Kill engines in turn meanwhile, one at a time; at the end, `count` have died.

    Each kill leaves the others alive: without a survivor, streams wait for a start.
    """

    async def kill() -> None:
        draw = random.Random(count)
        for number in range(count):
            rank = ranks[number % len(ranks)]
            await until(lambda: set(states(engine)) == {"ready"})
            await asyncio.sleep(draw.random() * 0.3)
            os.kill(processes(engine)[rank].pid, signal.SIGKILL)
            await until(lambda rank=rank: states(engine)[rank] != "ready")  # type: ignore[misc]

    killing = asyncio.ensure_future(kill())
    yield
    await killing


# --- parts


def measure_cost() -> None:
    """Print the processor time of one request: its prefix keys, and choosing its engine."""
    prompts = [list(range(256 * turn + 20)) for turn in range(1, 9) for _ in range(250)]
    for size in (2, 8):
        balancer = Balancer(size)
        keys_s = choice_s = 0.0
        for number, tokens in enumerate(prompts):
            began_s = time.process_time()
            keys: list[bytes] = []
            root = chain_root("", str(number % 250), ())
            extend_chain(keys, root, tokens, KEY_TOKENS, len(tokens) // KEY_TOKENS, {})
            hashed_s = time.process_time()
            rank = balancer.choose(range(size), keys, KEY_TOKENS, len(tokens))
            balancer.opened(rank)
            balancer.loads[rank].cached.add(keys)
            balancer.closed(rank)
            keys_s += hashed_s - began_s
            choice_s += time.process_time() - hashed_s
        print(
            f"cost: {1e6 * choice_s / len(prompts):.1f} us of a request for its choice among "
            f"{size} engines (at most 50), {1e6 * keys_s / len(prompts):.1f} us for its keys; "
            f"prompts of {len(prompts[0])} to {len(prompts[-1])} tokens"
        )


def measure_shares() -> None:
    """Print how many of 64 equal requests each of four engines gets."""

    async def main(engine: AsyncLLM) -> None:
        prompt = list(range(5, 90)) * 4
        began_s = time.monotonic()
        tasks = [
            asyncio.ensure_future(stream(engine, prompt, f"equal-{number}", 20))
            for number in range(64)
        ]
        loads = engine._client._balancer.loads  # type: ignore[attr-defined]
        await until(lambda: sum(load.num_requests for load in loads) == 64)
        sent_s = time.monotonic() - began_s
        await asyncio.gather(*tasks)
        counts = [load.num_requests for load in loads]
        print(f"shares: {counts} of 64 requests within {1e3 * sent_s:.0f} ms (16 +- 1 each)")

    with scripted(4) as engine:
        asyncio.run(main(engine))


def measure_hits() -> None:
    """Print the prefix hits of four engines next to one, and the share of each."""

    async def main(engine: AsyncLLM) -> int:
        draw = random.Random(1)
        system = [draw.randrange(5, 200) for _ in range(128)]
        histories = [list(system) for _ in range(50)]
        places = asyncio.Semaphore(16)

        async def turn(number: int, index: int) -> int:
            history = histories[number]
            history += [draw.randrange(5, 200) for _ in range(256)]
            params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
            async with places:
                name = f"conversation-{number}-{index}"
                outputs = [out async for out in engine.generate(list(history), params, name)]
            history += outputs[-1].outputs[0].token_ids
            return int(outputs[-1].num_cached_tokens or 0)

        found = 0
        for index in range(8):
            found += sum(await asyncio.gather(*(turn(number, index) for number in range(50))))
        return found

    found: list[int] = []
    for size in (1, 4):
        sizes = {"max_model_len": 4096, "kv_cache_memory_bytes": 1 << 28}
        with running("scripted:", size, **sizes) as engine:
            found.append(asyncio.run(main(engine)))
            if size > 1:
                loads = engine._client._balancer.loads  # type: ignore[attr-defined]
                counts = [load.num_requests for load in loads]
    print(
        f"hits: {found[1]} of one cache's {found[0]} tokens = {100 * found[1] / found[0]:.1f} % "
        f"(at least 95); requests by engine {counts}, "
        f"largest to smallest {max(counts) / min(counts):.2f} (at most 1.5)"
    )


def measure_gaps(size: int, num_streams: int, kills: int) -> None:
    """Print the worst gap of streams without and with kills."""

    async def main(engine: AsyncLLM) -> None:
        async def round_of(name: str, rounds: int) -> list[list[float]]:
            async def client(number: int) -> list[list[float]]:
                prompt = f"stream {number}"
                return [
                    await stream(engine, prompt, f"{name}-{number}-{index}", 100)
                    for index in range(rounds)
                ]

            found = await asyncio.gather(*map(client, range(num_streams)))
            return [times for each in found for times in each]

        await round_of("warm", 1)
        undisturbed = await round_of("undisturbed", 3)
        found: list[list[float]] = []
        async with repeated_kills(engine, kills, range(size)):
            while sum(each["restarts"] for each in engine.health()["engines"]) < kills - 1:
                found += await round_of(f"killed-{len(found)}", 1)
        assert all(len(times) for times in found)
        before_s = worst_gap(undisturbed)
        after_s = worst_gap(found)
        print(
            f"gaps: {num_streams} streams over {size} engines, {kills} kills, {len(found)} "
            f"requests; worst gap {before_s:.3f} s without, {after_s:.3f} s with kills (at most "
            f"{3 * before_s + 0.5:.3f})"
        )

    with scripted(size) as engine:
        asyncio.run(main(engine))


def measure_steps(num_streams: int, kills: int) -> None:
    """Print the median step of a survivor while the other engine dies again and again."""

    async def main(engine: AsyncLLM, sink: Steps) -> None:
        async def rows(name: str, stop: asyncio.Event) -> None:
            """Hold `num_streams` rows of engine 1 busy."""

            async def client(number: int) -> None:
                index = 0
                while not stop.is_set():
                    index += 1
                    request_id = f"{name}-{number}-{index}"
                    await stream(engine, "row", request_id, 200, data_parallel_rank=1)

            await asyncio.gather(*map(client, range(num_streams)))

        medians = []
        for name, number in (("quiet", 0), ("killed", kills), ("quiet again", 0)):
            stop = asyncio.Event()
            sink.steps.clear()
            busy = asyncio.ensure_future(rows(name, stop))
            if number:
                async with repeated_kills(engine, number, [0]):
                    pass
            else:
                await until(lambda: len(sink.steps) >= 1000)
            taken = [s for rank, rows_, s in sink.steps if (rank, rows_) == (1, num_streams)]
            stop.set()
            await busy
            medians.append(statistics.median(taken))
            print(f"steps: {name}: {len(taken)} steps of {num_streams} rows, {medians[-1]:.5f} s")
        quiet_s = (medians[0] + medians[2]) / 2
        print(f"steps: {100 * (medians[1] / quiet_s - 1):+.1f} % while the other dies (at most +5)")

    with scripted(2) as engine:
        sink = Steps()
        entry = engine.sinks.entries[0]
        engine.sinks.entries.append(type(entry)("steps", "benchmark", sink))
        asyncio.run(main(engine, sink))


def measure_throughput(rounds: int) -> None:
    """Print requests per second of two engines with a thread each, and of one with two."""

    async def batch(engine: AsyncLLM, name: str) -> tuple[float, float]:
        """Return requests per second, and processor time of a request."""
        draw = random.Random(name)
        prompts = [[draw.randrange(5, 7000) for _ in range(64)] for _ in range(64)]
        used_s = cpu_s(engine)
        began_s = time.monotonic()
        await asyncio.gather(
            *(
                stream(engine, prompt, f"{name}-{number}", 32)
                for number, prompt in enumerate(prompts)
            )
        )
        took_s = time.monotonic() - began_s
        return len(prompts) / took_s, (cpu_s(engine) - used_s) / len(prompts)

    with tempfile.TemporaryDirectory() as folder:
        model = str(make_checkpoint("Qwen3ForCausalLM", Path(folder) / "model", **SHAPE))
        sizes = {"max_model_len": 512, "kv_cache_memory_bytes": 1 << 27, "dtype": "bfloat16"}
        with (
            running(model, 1, **{**sizes, "num_threads": 2}) as one,
            running(model, 2, **sizes) as two,
        ):

            async def main() -> None:
                pairs = [
                    [await batch(one, f"{index}-1"), await batch(two, f"{index}-2")]
                    for index in range(rounds + 1)
                ][1:]
                ratios = sorted(after[0] / before[0] for before, after in pairs)
                cpu = statistics.median(after[1] / before[1] for before, after in pairs)
                speeds = [statistics.median(pair[side][0] for pair in pairs) for side in (0, 1)]
                print(
                    f"throughput: one engine with two threads {speeds[0]:.1f} requests/s, two "
                    f"with one each {speeds[1]:.1f}; median ratio of {rounds} pairs "
                    f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}); "
                    f"processor time of a request {cpu:.2f} times"
                )

            asyncio.run(main())


def main() -> None:
    """Measure the named parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", type=int, default=2, help="of `gaps`")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    parts = {
        "cost": lambda args: measure_cost(),
        "shares": lambda args: measure_shares(),
        "hits": lambda args: measure_hits(),
        "gaps": lambda args: measure_gaps(args.engines, args.streams, args.kills),
        "steps": lambda args: measure_steps(min(16, args.streams), args.kills),
        "throughput": lambda args: measure_throughput(args.rounds),
    }
    parser.add_argument("parts", nargs="*", choices=[*parts, []], metavar="PART")
    args = parser.parse_args()
    for name in args.parts or parts:
        print(f"load {os.getloadavg()[0]:.1f}", flush=True)
        parts[name](args)


if __name__ == "__main__":
    main()
