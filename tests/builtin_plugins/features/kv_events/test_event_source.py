"""Events of whole engines: prefix cache, tier, and restart."""

from __future__ import annotations

import asyncio
import json
import runpy
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import unwrap
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from builtin_plugins.features.kv_events.events import DEVICE
from core import LLM, AsyncLLM, SamplingParams
from tests.timeouts import TIMEOUT_S

EXAMPLE = runpy.run_path(str(Path(__file__).parents[4] / "examples" / "clients" / "kv_events.py"))
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
PROMPTS = [[2 + (i * 5 + j * j) % 60 for j in range(70)] for i in range(6)]
"""Six distinct prompts; the cache holds three."""


def settings(folder: Path) -> dict[str, Any]:
    """Return the settings of an engine that publishes its events in a folder."""
    events = {
        "enable_kv_cache_events": True,
        "endpoint": f"ipc://{folder}/events",
        "replay_endpoint": f"ipc://{folder}/replay",
        "block_hashes": "bytes",
    }
    return {
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "max_model_len": 128,
        "block_size": 8,
        "num_threads": 1,
        "num_gpu_blocks_override": 30,
        "plugins": ["core.testing.fake_model"],
        "kv_events_config": events,
    }


def open_llm(folder: Path, **options: Any) -> LLM:
    return LLM("fake:", max_num_seqs=2, **settings(folder), **options)


@contextmanager
def followed(folder: Path) -> Iterator[tuple[Any, Any]]:
    """Yield an index that a thread updates, and a function that waits for its contents."""
    index = EXAMPLE["Index"]()
    context = zmq.Context()
    addresses = f"ipc://{folder}/events", f"ipc://{folder}/replay"

    def listen() -> None:
        try:
            for events in EXAMPLE["follow"](context, *addresses, "", 1000 * TIMEOUT_S):
                index.apply(events)
        except zmq.ZMQError:
            pass  # the context was closed

    def becomes(expected: Any) -> None:
        end_s = time.monotonic() + TIMEOUT_S
        while set(index.parents) != (keys := expected()):
            assert time.monotonic() < end_s, set(index.parents) ^ keys
            time.sleep(0.01)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield index, becomes
    finally:
        context.term()
        thread.join()


def on_device(llm: LLM) -> set[tuple[str, int, bytes]]:
    kv = llm.core.scheduler.kv
    groups = enumerate(kv.layout.groups)
    return {
        (DEVICE, index, key)
        for index, group in groups
        for key in kv.pools[group.pool].cached_blocks(index)
    }


def generate(llm: LLM, prompts: list[list[int]]) -> None:
    llm.generate(prompts, PARAMS, use_tqdm=False)


def connect_subscriber(llm: LLM, index: Any) -> None:
    """Publish until the subscriber gets a message; it then requests the missed batches."""
    for number in count():
        if index.parents:
            return
        generate(llm, [[2 + number % 60, *range(20)]])


def test_events_mirror_the_prefix_cache(tmp_path: Path) -> None:
    with open_llm(tmp_path) as llm, followed(tmp_path) as (index, becomes):
        for _ in range(3):
            generate(llm, PROMPTS)
        connect_subscriber(llm, index)
        becomes(lambda: on_device(llm))
        assert llm.reset_prefix_cache()
        becomes(set)
        generate(llm, PROMPTS)
        becomes(lambda: on_device(llm))


def test_tier_blocks_survive_a_cleared_prefix_cache(tmp_path: Path) -> None:
    transfer = {
        "kv_connector": "offload",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 13},
    }
    with (
        open_llm(tmp_path, kv_transfer_config=transfer) as llm,
        followed(tmp_path) as (index, becomes),
    ):
        for _ in range(3):
            generate(llm, PROMPTS)
        connect_subscriber(llm, index)
        tier = unwrap(dict(llm.core.scheduler._extensions._planned)["kv_connectors"]).__self__

        def everywhere() -> set[tuple[str, int, bytes]]:
            llm.core.step()
            in_tier = {("CPU", *key) for key in tier._index.directory._inner._policy}
            return on_device(llm) | in_tier

        # While writes are in flight, every block of the small tier may be evicted at once.
        while tier._writes.pending or tier._in_flight:
            llm.core.step()
        becomes(everywhere)
        assert {medium for medium, _, _ in index.parents} == {DEVICE, "CPU"}
        assert tier.status.counts.evicted, "the tier never evicted a block"
        assert llm.reset_prefix_cache()
        becomes(everywhere)
        assert {medium for medium, _, _ in index.parents} == {"CPU"}


def test_new_engine_reuses_endpoints_and_reports_empty_cache(tmp_path: Path) -> None:
    with followed(tmp_path) as (index, becomes):
        for _ in range(2):
            with open_llm(tmp_path) as llm:
                connect_subscriber(llm, index)
                becomes(lambda llm=llm: on_device(llm))


@pytest.mark.slow
def test_each_data_parallel_rank_publishes_its_own_cache(tmp_path: Path) -> None:
    replay = f"ipc://{tmp_path}/replay"
    engine = AsyncLLM("fake:", data_parallel_size=2, **settings(tmp_path))

    async def compute() -> list[dict[str, Any]]:
        for rank, tokens in enumerate(PROMPTS[:2]):
            async for _ in engine.generate(tokens, PARAMS, f"r{rank}", data_parallel_rank=rank):
                pass
        answers = await engine.call("kv_events.chain")
        return [json.loads(answer.scheduler or b"") for answer in answers]

    context = zmq.Context()
    try:
        chains = asyncio.run(compute())
        for rank, endpoint in enumerate((replay, f"{replay}_dp1")):
            keys = {("GPU", 0, key) for key in EXAMPLE["block_keys"](PROMPTS[rank], **chains[rank])}
            other = EXAMPLE["block_keys"](PROMPTS[1 - rank], **chains[rank])
            index = EXAMPLE["Index"]()
            while not keys <= set(index.parents):
                batches = EXAMPLE["_replayed"](context, endpoint, 0, 1000 * TIMEOUT_S)
                for _, batch in batches:
                    _, events, published_by = msgspec.msgpack.decode(batch)
                    assert published_by == rank
                    index.apply(events)
            assert ("GPU", 0, other[0]) not in index.parents
    finally:
        context.destroy(0)
        engine.shutdown()
