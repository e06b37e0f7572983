"""Memory growth of a server during ten minutes of valid requests of all kinds.

Clients send one request at a time: completions and chats, complete and streamed, with several
sequences, log-probabilities, tools, schemas, regular expressions, stop texts, long prompts, shared
prefixes, and disconnects in the middle of a stream. Prompts never repeat. The resident memory of
every process and the owners in `/metrics` are read every second.

Prints means over twentieths of the time, and the growth of the second half: the mean of its last
quarter against that of its first. The target applies after the cache was filled once;
`--kv-cache-memory-bytes` sets its size.

Run: python benchmarks/neighbours/soak.py [--seconds N] [--clients N] [--only KIND ...] [--json
FILE] [-- FLAGS OF ENGINE SERVE]
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ENGINE = (
    sys.executable,
    "-P",
    "-c",
    "import sys; from core.cli.main import main; sys.exit(main())",
)
FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "think")
CACHE = ("--kv-cache-memory-bytes", "128M")
TARGET = 0.03
TWENTIETHS = 20
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal", "Ivy", "Joe")
CITIES = ("Paris", "Rome", "Oslo", "Bern", "Kyiv", "Lima", "Quito", "Riga")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}

Body = dict[str, Any]


def chat(rng: random.Random, text: str, **fields: Any) -> tuple[str, Body]:
    """Return a chat request."""
    messages = [{"role": "user", "content": f"{text} ({rng.randrange(10**9)})"}]
    return "/v1/chat/completions", {
        "messages": messages,
        "max_tokens": rng.randrange(8, 96),
        **fields,
    }


def completion(rng: random.Random, words: int, **fields: Any) -> tuple[str, Body]:
    """Return a completion of random words."""
    prompt = " ".join(rng.choice((*NAMES, *CITIES, str(rng.randrange(1000)))) for _ in range(words))
    return "/v1/completions", {"prompt": prompt, "max_tokens": rng.randrange(1, 64), **fields}


def schema(rng: random.Random) -> Body:
    """Return one of a few hundred schemas."""
    names = rng.sample(("name", "age", "city", "score", "tags"), rng.randrange(1, 4))
    kinds = {"name": "string", "age": "integer", "city": "string", "score": "number"}
    made = {
        name: {"type": kinds[name]}
        if name in kinds
        else {"type": "array", "items": {"type": "string"}, "maxItems": 3}
        for name in names
    }
    return {"type": "object", "properties": made, "required": names, "additionalProperties": False}


def shared(rng: random.Random) -> tuple[str, Body]:
    """Return a chat with one of a few long system prompts."""
    system = " ".join(
        f"Rule {i}: be kind to {NAMES[i % len(NAMES)]}." for i in range(10 + rng.randrange(4))
    )
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": f"Hello {rng.randrange(10**9)}"},
    ]
    return "/v1/chat/completions", {"messages": messages, "max_tokens": 24}


KINDS: Mapping[str, Callable[[random.Random], tuple[str, Body]]] = {
    "sum": lambda rng: chat(
        rng, f"What is {rng.randrange(999)} + {rng.randrange(999)}?", stream=True
    ),
    "sum, whole": lambda rng: chat(rng, f"What is {rng.randrange(999)} + {rng.randrange(999)}?"),
    "tools": lambda rng: chat(
        rng, f"What is the weather in {rng.choice(CITIES)}?", tools=[TOOL], stream=True
    ),
    "forced tool": lambda rng: chat(
        rng, f"Weather in {rng.choice(CITIES)}?", tools=[TOOL], tool_choice="required"
    ),
    "several": lambda rng: completion(rng, 20, n=3, temperature=1.0, seed=rng.randrange(1 << 30)),
    "log-probabilities": lambda rng: completion(rng, 10, logprobs=5, temperature=0.7),
    "long": lambda rng: completion(rng, 300, stream=True),
    "stop": lambda rng: completion(rng, 30, stop=["a", "12"], temperature=1.0),
    "penalties": lambda rng: completion(
        rng, 30, frequency_penalty=0.5, top_p=0.9, top_k=40, min_p=0.01
    ),
    "schema": lambda rng: chat(
        rng,
        "Ada is 36.",
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": schema(rng)},
        },
    ),
    "regex": lambda rng: completion(
        rng, 5, structured_outputs={"regex": f"[a-{rng.choice('fghij')}]{{3,9}}"}
    ),
    "choice": lambda rng: completion(rng, 5, structured_outputs={"choice": rng.sample(CITIES, 3)}),
    "shared": shared,
    "left": lambda rng: completion(rng, 40, stream=True),
}
"""Kinds of requests; `left` kinds disconnect after their first bytes."""


@dataclass
class Tally:
    """Counts of requests by result."""

    done: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    ended: bool = False


def send_requests(
    url: urllib.parse.ParseResult, rng: random.Random, tally: Tally, kinds: list[str]
) -> None:
    """Send requests one after another until the time is over."""
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=600)
    while not tally.ended:
        kind = rng.choice(kinds)
        path, body = KINDS[kind](rng)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if kind == "left":
                answer.read(200)
                connection.close()
            else:
                text = answer.read()
                if answer.status != 200:
                    tally.faults[f"{kind}: {answer.status} {text[:200]!r}"] += 1
        except OSError as error:
            tally.faults[f"{kind}: {error!r}"] += 1
            connection.close()
        tally.done[kind] += 1
    connection.close()


@contextmanager
def served(flags: list[str]) -> Iterator[tuple[int, str]]:
    """Start a server, yield its process and address, and stop it."""
    command = [
        *ENGINE,
        "serve",
        "--port",
        "0",
        "--disable-uvicorn-access-log",
        "--log-level",
        "warning",
        *flags,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.pid, process.stdout.readline().split()[-1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        process.stdout.close()


def family(root: int) -> dict[int, str]:
    """Return a process and its descendants, with their names."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
    found = {root: "server"}
    while fresh := [pid for pid, parent in parents.items() if parent in found and pid not in found]:
        for pid in fresh:
            with suppress(OSError):
                words = (Path("/proc") / str(pid) / "cmdline").read_text().split("\0")
                found[pid] = next(
                    (w for w in words if w.startswith(("core.", "builtin_plugins."))), "other"
                )
    return found


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes; 0 after its end."""
    with suppress(OSError):
        return int((Path("/proc") / str(pid) / "statm").read_text().split()[1]) * 4096
    return 0


def owners(url: str) -> dict[str, float]:
    """Return the bytes by owner, as reported by the server."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=600) as answer:
        text = answer.read().decode()
    found = re.findall(
        r'^engine_memory_bytes\{.*?owner="([^"]*)".*?process="([^"]*)".*?\} (\S+)$',
        text,
        re.MULTILINE,
    )
    return {f"{process}: {owner}": float(value) for owner, process, value in found}


def watch(pid: int, seconds: float) -> tuple[dict[str, list[int]], dict[str, set[int]]]:
    """Record the memory of all processes every second, and the processes of each kind."""
    sizes: dict[str, list[int]] = {}
    pids: dict[str, set[int]] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        now: Counter[str] = Counter()
        for each, name in family(pid).items():
            now[name] += resident(each)
            pids.setdefault(name, set()).add(each)
        for name, size in now.items():
            sizes.setdefault(name, []).append(size)
        time.sleep(1)
    return sizes, pids


def growth(sizes: list[int]) -> float:
    """Return the growth of the second half: mean of its last quarter over mean of its first."""
    half = sizes[len(sizes) // 2 :]
    part = max(1, len(half) // 4)
    return statistics.mean(half[-part:]) / statistics.mean(half[:part]) - 1


def main() -> int:
    """Measure and print; return 1 for excessive growth or a failed request."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", nargs="+", choices=list(KINDS), default=list(KINDS), help="kinds of requests"
    )
    parser.add_argument("--json", type=Path, help="file for all samples")
    args, flags = parser.parse_known_args()
    flags = [flag for flag in flags if flag != "--"]
    tally = Tally()
    with served([*FLAGS, *(() if "--kv-cache-memory-bytes" in flags else CACHE), *flags]) as (
        pid,
        url,
    ):
        address = urllib.parse.urlparse(url)
        threads = [
            threading.Thread(
                target=send_requests,
                args=(address, random.Random(f"{args.seed} {i}"), tally, args.only),
            )
            for i in range(args.clients)
        ]
        first = owners(url)
        for thread in threads:
            thread.start()
        sizes, pids = watch(pid, args.seconds)
        last = owners(url)
        tally.ended = True
        for thread in threads:
            thread.join()
    if args.json:
        args.json.write_text(
            json.dumps({"sizes": sizes, "first": first, "last": last, "done": tally.done})
        )
    return show(sizes, pids, first, last, tally, args.seconds)


def show(
    sizes: dict[str, list[int]],
    pids: dict[str, set[int]],
    first: dict[str, float],
    last: dict[str, float],
    tally: Tally,
    seconds: float,
) -> int:
    """Print the table and the verdict."""
    total = sum(tally.done.values())
    print(
        f"{total} requests in {seconds:.0f} s, {sum(tally.faults.values())} failed; resident MiB "
        "by twentieths"
    )
    grew = False
    for name, values in sizes.items():
        step = max(1, len(values) // TWENTIETHS)
        means = [
            statistics.mean(values[at : at + step]) / 2**20 for at in range(0, len(values), step)
        ]
        share = growth(values)
        judged = (
            len(values) > len(next(iter(sizes.values()))) // 2
        )  # a short-lived process has no halves
        grew |= judged and share > TARGET
        print(
            f"{name} ({len(pids[name])} processes): second half {share:+.1%}   (target: up to "
            f"{TARGET:+.0%})"
        )
        print("  " + " ".join(f"{mean:.0f}" for mean in means))
    for owner in sorted(first.keys() | last.keys()):
        print(
            f"  {owner:<40} {first.get(owner, 0) / 2**20:10.1f} -> "
            f"{last.get(owner, 0) / 2**20:10.1f} MiB"
        )
    for fault, count in tally.faults.most_common(10):
        print(f"  {count} times {fault}")
    return int(grew or bool(tally.faults))


if __name__ == "__main__":
    sys.exit(main())
