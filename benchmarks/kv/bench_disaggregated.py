"""Inter-token times of streams during long prompts: one engine, and two with `engine route`.

Run: python -m benchmarks.kv.bench_disaggregated [--prompts 6] [--prompt-tokens 8192] [--streams 4]
[--threads 2]

Prompts arrive one after another while streams continue. The single engine has all threads; the two
engines share them. Random weights, 8 layers with hidden size 512: a prompt takes seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from builtin_plugins.commands.route.proxy import Address, call_engine
from core.testing.checkpoints import make_checkpoint

COMMAND: Final = "import sys; from core.cli.main import main; sys.exit(main())"
SHAPE: Final[dict[str, Any]] = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "head_dim": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}
VOCABULARY: Final = 250
TIMEOUT_S: Final = 120.0
BEFORE: Final = 8
"""Number of tokens of each stream before the first prompt."""


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def serving(*arguments: str, threads: int = 1) -> Iterator[str]:
    """Run an engine command that serves; return its URL once it is ready."""
    port = free_port()
    command = [sys.executable, "-P", "-c", COMMAND, *arguments, "--port", str(port)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, env=environment, start_new_session=True
    )
    url = f"http://127.0.0.1:{port}"
    end_s = time.monotonic() + TIMEOUT_S
    try:
        while True:
            with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=TIMEOUT_S):
                break
            if process.poll() is not None or time.monotonic() > end_s:
                raise SystemExit(f"`engine {' '.join(arguments)}` does not serve")
            time.sleep(0.1)
        yield url
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def one_engine(model: Path, threads: int) -> Iterator[str]:
    """Serve prompts and streams with one engine."""
    with serving(*_flags(model, threads), threads=threads) as url:
        yield url


@contextmanager
def two_engines(model: Path, threads: int) -> Iterator[str]:
    """Serve prompts and streams with one engine each, with half of the threads."""
    with ExitStack() as stack:
        urls = []
        for role in ("kv_producer", "kv_consumer"):
            given = {
                "kv_connector": "tcp", "kv_role": role, "kv_port": free_port(),
                "kv_connector_extra_config": {"token": "a token of a benchmark"},
            }  # fmt: skip
            flags = [*_flags(model, threads // 2), "--kv-transfer-config", json.dumps(given)]
            urls.append(stack.enter_context(serving(*flags, threads=threads // 2)))
        yield stack.enter_context(serving("route", "--prefill", urls[0], "--decode", urls[1]))


def _flags(model: Path, threads: int) -> list[str]:
    return [
        *("serve", str(model), "--skip-tokenizer-init"),
        *("--max-model-len", "16384", "--max-num-seqs", "16"),
        *("--num-threads", str(threads), "--kv-cache-memory-bytes", str(1 << 30)),
    ]


async def stream(url: str, index: int, gaps_s: list[float], ready: asyncio.Event) -> None:
    """Read a stream forever; record the inter-token times after the first tokens."""
    body = {
        "prompt": _prompt(1000 + index, 32),
        "max_tokens": 16000,
        "ignore_eos": True,
        "stream": True,
    }
    async with call_engine(*_request(url, body)) as answer:
        count = 0
        last_s = 0.0
        async for piece in answer.pieces:
            events = piece.count(b"data: {")
            now_s = time.perf_counter()
            if not events:
                continue
            count += events
            if count > BEFORE and ready.is_set():
                gaps_s += [now_s - last_s, *[0.0] * (events - 1)]
            last_s = now_s


async def measure(url: str, args: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Return the inter-token times and the time of each prompt, in seconds."""
    gaps_s: list[float] = []
    took_s: list[float] = []
    ready = asyncio.Event()
    streams = [
        asyncio.create_task(stream(url, index, gaps_s, ready)) for index in range(args.streams)
    ]
    await asyncio.sleep(args.settle_s)
    ready.set()
    for index in range(args.prompts):
        body = {"prompt": _prompt(index, args.prompt_tokens), "max_tokens": 4, "ignore_eos": True}
        start_s = time.perf_counter()
        async with call_engine(*_request(url, body)) as answer:
            body = await answer.whole()
            if answer.status != 200:
                raise SystemExit(body.decode())
        took_s.append(time.perf_counter() - start_s)
    ended = [task for task in streams if task.done()]
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    if ended:
        raise SystemExit("a stream ended before the prompts did")
    return gaps_s, took_s


def _request(url: str, body: dict[str, Any]) -> tuple[Address, bytes, bytes, Any, bytes, float]:
    data = json.dumps({**body, "temperature": 0, "return_token_ids": True}).encode()
    headers = [(b"content-type", b"application/json")]
    return Address.of(url, "--decode"), b"POST", b"/v1/completions", headers, data, TIMEOUT_S


def _prompt(number: int, count: int) -> list[int]:
    return [
        3 + (number * 7919 + at * at * 31 + at * (number + 1)) % VOCABULARY for at in range(count)
    ]


def main() -> None:
    """Measure both and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, count in (
        ("prompts", 6),
        ("prompt-tokens", 8192),
        ("streams", 4),
        ("threads", 2),
        ("settle-s", 3),
    ):
        parser.add_argument(f"--{name}", type=int, default=count)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_checkpoint("Qwen3ForCausalLM", Path(folder) / "model", **SHAPE)
        worst: list[float] = []
        for name, served in (("one engine", one_engine), ("two engines", two_engines)):
            with served(model, args.threads) as url:
                gaps_s, took_s = asyncio.run(measure(url, args))
            cuts = statistics.quantiles(gaps_s, n=100)
            worst.append(cuts[98])
            print(
                f"{name}: between tokens p50 {cuts[49] * 1e3:.1f} ms, p99 {cuts[98] * 1e3:.1f}, "
                f"longest {max(gaps_s) * 1e3:.1f} "
                f"({len(gaps_s)} tokens); a prompt took {statistics.median(took_s):.1f} s",
                flush=True,
            )
        print(f"p99 of two engines by one: {worst[1] / worst[0]:.2f}")


if __name__ == "__main__":
    main()
