"""Throughput of nine clients while a tenth keeps fifty requests open, relative to without it.

Each of the nine sends one request at a time. Clients are identified by their API keys. Prints the
median ratio of the nine clients' tokens over pairs of rounds.

Run: python benchmarks/neighbours/fair_scheduling.py [--rounds N] [--round-s S] [--max-tokens N] [--
FLAGS OF engine serve]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
import time

import httpx
from serving import Served, served

TARGET = 0.9
PROMPTS = (
    "Describe the sea.",
    "What is a lighthouse?",
    "Write a line on bread.",
    "Why is the sky blue?",
)


async def loop(
    client: httpx.AsyncClient, key: str, max_tokens: int, got: dict[str, int], until_s: float
) -> None:
    """Send one request after another, and count tokens."""
    rng = random.Random(key)
    headers = {"authorization": f"Bearer {key}"}
    while time.monotonic() < until_s:
        prompt = rng.choice(PROMPTS) + str(rng.random())
        body = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        async with client.stream("POST", "/v1/completions", json=body, headers=headers) as reply:
            reply.raise_for_status()
            async for line in reply.aiter_lines():
                if time.monotonic() >= until_s:
                    return
                got[key] = got.get(key, 0) + line.startswith('data: {"id"')


async def one_round(
    server: Served, hostile: int, round_s: float, max_tokens: int
) -> tuple[float, float]:
    """Return the tokens per second of the nine clients, and of the tenth."""
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
        got: dict[str, int] = {}
        until_s = time.monotonic() + round_s
        tasks = [
            asyncio.create_task(loop(client, f"key-{i}", max_tokens, got, until_s))
            for i in range(9)
        ]
        await asyncio.sleep(0.2)
        others = [
            asyncio.create_task(loop(client, "key-9", max_tokens, got, until_s))
            for _ in range(hostile)
        ]
        await asyncio.gather(*tasks)
        for task in others:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*others, return_exceptions=True)
        tenth = got.pop("key-9", 0)
        return sum(got.values()) / round_s, tenth / round_s


async def measure(server: Served, rounds: int, round_s: float, max_tokens: int) -> float:
    await one_round(server, 0, 2.0, max_tokens)
    ratios = []
    for number in range(rounds):
        order = (0, 50) if number % 2 == 0 else (50, 0)
        found = {
            hostile: await one_round(server, hostile, round_s, max_tokens) for hostile in order
        }
        ratios.append(found[50][0] / found[0][0])
        print(
            f"round {number}: the nine {found[0][0]:.0f} tokens/s alone, {found[50][0]:.0f} with "
            "the tenth, "
            f"which got {found[50][1]:.0f}: {ratios[-1]:.3f}"
        )
    return statistics.median(ratios)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--round-s", type=float, default=8.0)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("flags", nargs="*", help="of engine serve")
    args = parser.parse_args()
    keys = [f"--api-key=key-{i}" for i in range(10)]
    with served(*args.flags, *keys) as server:
        ratio = asyncio.run(measure(server, args.rounds, args.round_s, args.max_tokens))
    print(f"the nine keep {ratio:.1%} of what they have alone (target {TARGET:.0%})")
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
