"""Two prefill and two decode engines with `engine route`: tokens match one engine despite kills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.commands.route.proxy import Address, Lost, call_engine
from core import LLM, SamplingParams
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.kv_connectors.small_engines import free_port
from tests.timeouts import TIMEOUT_S

COMMAND = "import sys; from core.cli.main import main; sys.exit(main())"
NUM_REQUESTS = 1000
AT_ONCE = 12
MAX_TOKENS = 10
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 160,
    "block_size": 8,
    "max_num_seqs": 8,
    "num_threads": 1,
}
PROMPTS = [
    [(7 * (i % 40) + 3 * j * j) % 290 for j in range(64)]
    + [(11 * i + j) % 290 for j in range(20 + i % 37)]
    for i in range(NUM_REQUESTS)
]
"""Forty prefixes, each with many suffixes."""


class Server:
    """A server process that can be killed and restarted on its port."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self.port = free_port()
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-P", "-c", COMMAND, *self._arguments, "--port", str(self.port)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, env=environment, start_new_session=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait(self) -> None:
        """Wait until it is healthy."""
        end_s = time.monotonic() + TIMEOUT_S
        while True:
            with (
                suppress(OSError),
                urllib.request.urlopen(f"{self.url}/health", timeout=TIMEOUT_S),
            ):
                return
            assert self._process.poll() is None, "a server ended before it served"
            assert time.monotonic() < end_s
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill its process group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def number(self, name: str) -> float:
        """Return a metric, summed over its labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=TIMEOUT_S) as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            float(line.split()[-1]) for line in lines if name in line and not line.startswith("#")
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("Qwen3ForCausalLM", tmp_path_factory.mktemp("model"), seed=1)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, detokenize=False)
    with LLM(str(folder), kv_cache_memory_bytes=8 << 20, **OPTIONS) as llm:
        return [list(o.outputs[0].token_ids) for o in llm.generate(PROMPTS, params, use_tqdm=False)]


@pytest.fixture
def fleet(folder: Path) -> Iterator[dict[str, Server]]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    flags += ["--kv-cache-memory-bytes", str(2 << 20), "--skip-tokenizer-init"]
    flags += ["--structured-outputs-config.warm_up", "false"]

    def engine(role: str) -> Server:
        given = {
            "kv_connector": "tcp",
            "kv_role": role,
            "kv_port": free_port(),
            "kv_buffer_size": 64 << 20,
            "kv_connector_extra_config": {"token": "a token of the tests"},
        }
        return Server("serve", str(folder), *flags, "--kv-transfer-config", json.dumps(given))

    servers = {
        name: engine(f"kv_{name.partition(' ')[0]}")
        for name in ("producer 1", "producer 2", "consumer 1", "consumer 2")
    }
    try:
        for server in servers.values():
            server.wait()
        prefill = [
            word
            for name in ("producer 1", "producer 2")
            for word in ("--prefill", servers[name].url)
        ]
        decode = [
            word
            for name in ("consumer 1", "consumer 2")
            for word in ("--decode", servers[name].url)
        ]
        servers["router"] = Server(
            "route", *prefill, *decode, "--health-interval", "0.5", "--retries", "6"
        )
        servers["router"].wait()
        yield servers
    finally:
        for server in servers.values():
            server.kill()


async def complete(router: Server, index: int) -> tuple[list[int], bool]:
    """Return a request's tokens and whether it ended well; every third is streamed."""
    body = {
        "prompt": PROMPTS[index],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": index % 3 == 0,
    }
    address = Address.parse(router.url, "--decode")
    data = json.dumps(body).encode()
    tokens: list[int] = []
    try:
        async with call_engine(address, b"POST", b"/v1/completions", [], data, TIMEOUT_S) as answer:
            text = (await answer.whole()).decode()
    except Lost:
        return tokens, False
    if answer.status != 200:
        return tokens, False
    if not body["stream"]:
        return json.loads(text)["choices"][0]["token_ids"], True
    for line in text.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            tokens += [
                token for choice in event.get("choices", ()) for token in choice["token_ids"]
            ]
    return tokens, text.rstrip().endswith("[DONE]")


async def complete_all(
    router: Server, indices: Sequence[int], midway: Any = lambda: None
) -> dict[int, tuple[list[int], bool]]:
    """Send requests, a few at once. Calls `midway` when half of them are answered."""
    semaphore = asyncio.Semaphore(AT_ONCE)
    ended = 0
    found: dict[int, tuple[list[int], bool]] = {}

    async def one(index: int) -> None:
        nonlocal ended
        async with semaphore:
            found[index] = await complete(router, index)
        ended += 1
        if ended == len(indices) // 2:
            await asyncio.to_thread(midway)

    await asyncio.gather(*map(one, indices))
    return found


@pytest.mark.slow
def test_thousand_requests_match_one_engine_despite_kills(
    fleet: dict[str, Server], expected: list[list[int]]
) -> None:
    router = fleet["router"]
    first = 0
    broken = 0
    for killed in (None, "producer 1", "consumer 1", "producer 2", "consumer 2"):
        indices = range(first, first + NUM_REQUESTS // 5)
        first += NUM_REQUESTS // 5
        midway = fleet[killed].kill if killed else lambda: None
        found = asyncio.run(complete_all(router, indices, midway))
        for index, (tokens, is_whole) in found.items():
            assert tokens == expected[index][: len(tokens)]
            assert is_whole == (len(tokens) == MAX_TOKENS)
            # Only a stream that has begun cannot be retried.
            assert is_whole or (index % 3 == 0 and killed and killed.startswith("consumer"))
            broken += not is_whole
        if killed is None:
            loaded = [
                fleet[name].number("kv_connector_loaded_blocks_total")
                for name in ("consumer 1", "consumer 2")
            ]
            assert min(loaded) > 0
        else:
            fleet[killed].start()
            fleet[killed].wait()
    assert broken <= 2 * AT_ONCE


@pytest.mark.slow
def test_killed_router_loses_only_open_requests(
    fleet: dict[str, Server], expected: list[list[int]]
) -> None:
    router = fleet["router"]
    found = asyncio.run(complete_all(router, range(100), router.kill))
    for index, (tokens, is_whole) in found.items():
        assert tokens == expected[index][: len(tokens)]
        assert not is_whole or len(tokens) == MAX_TOKENS
    router.start()
    router.wait()
    found = asyncio.run(complete_all(router, range(100)))
    assert all(found[index] == (expected[index], True) for index in range(100))
