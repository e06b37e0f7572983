"""Requests that say what their blocks are worth: found again or not, refused by name, and the same
tokens in any case.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from pathlib import Path
from typing import Any

import httpx
import pytest
from patience import PATIENCE_S

from builtin_plugins.kv_eviction.admission import read
from builtin_plugins.kv_eviction.retention import Retaining
from builtin_plugins.kv_eviction.scheduling import Eviction
from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.scheduling_policies.fcfs import FirstCome
from builtin_plugins.servers.http.server import HttpServer
from core import LLM, AsyncLLM, SamplingParams
from core.api import InvalidRequest, Retention
from core.testing.replay import replay

PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)
BLOCK = 8
LENGTH = 64
DEAR = [2 + (5 * j) % 60 for j in range(LENGTH)]


def open_llm(num_blocks: int = 30, **options: Any) -> LLM:
    return LLM(
        "fake:",
        skip_tokenizer_init=True,
        max_num_seqs=1,
        dtype="float32",
        max_model_len=128,
        block_size=BLOCK,
        num_threads=1,
        num_gpu_blocks_override=num_blocks,
        **{"plugins": ["core.testing.fake_model"], **options},
    )


def stranger(number: int) -> list[int]:
    return [2 + (number * 7 + j * (number + 2)) % 60 for j in range(LENGTH)]


def ask(llm: LLM, prompt: list[int], said: Any = None) -> tuple[list[int], int]:
    """Return the answer, and how many tokens of the prompt were found."""
    more = {} if said is None else {"kv_retention": said}
    (output,) = llm.generate([prompt], PARAMS, use_tqdm=False, **more)
    llm.core.scheduler.check()
    return list(output.outputs[0].token_ids), output.num_cached_tokens or 0


def crowd(llm: LLM, said: Any = None, first: int = 0) -> None:
    """Have more strangers than the cache holds."""
    for number in range(first, first + 8):
        ask(llm, stranger(number), said)


@pytest.mark.parametrize(
    ("said", "others", "found"),
    [
        (None, None, 0),
        ({"priority": 90}, None, LENGTH - BLOCK),
        ({"priority": 90, "first_tokens": 3 * BLOCK + 1}, None, 3 * BLOCK),
        ({"priority": 90, "duration_s": 0}, None, 0),
        (None, {"priority": 10}, LENGTH - BLOCK),
        ({"priority": 60}, {"priority": 90}, 0),
    ],
)
def test_what_is_worth_more_is_found_behind_a_crowd(said: Any, others: Any, found: int) -> None:
    with open_llm(kv_retention_share=0.5) as llm:
        answer, _ = ask(llm, DEAR, said)
        crowd(llm, others)
        assert ask(llm, DEAR) == (answer, found)


def test_before_anybody_says_anything_the_pool_s_own_queue_is_there() -> None:
    with open_llm() as llm:
        ask(llm, DEAR)
        (pool,) = llm.core.scheduler.kv.pools
        assert type(pool.free) is OrderedDict
        ask(llm, DEAR, {"priority": 50})
        assert type(pool.free) is not OrderedDict


def test_what_was_in_the_cache_before_is_worth_what_is_usual() -> None:
    with open_llm() as llm:
        answer, _ = ask(llm, DEAR)
        ask(llm, DEAR, {"priority": 0})
        ask(llm, stranger(1))
        ask(llm, stranger(2))
        assert ask(llm, DEAR) == (answer, LENGTH - BLOCK)


def test_who_asks_for_everything_gets_a_share_and_others_are_served_from_the_rest() -> None:
    with open_llm(kv_retention_share=0.3) as llm:
        crowd(llm, {"priority": 100, "duration_s": 86400})
        crowd(llm, first=20)
        found = [ask(llm, stranger(number))[1] for number in (27, 26)]
        assert found[0] == LENGTH - BLOCK
        assert sum(ask(llm, stranger(number))[1] for number in range(8)) <= 0.3 * 30 * BLOCK


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("high", "kv_retention"),
        ([], "kv_retention"),
        ({"priority": "high"}, "kv_retention.priority"),
        ({"priority": 101}, "kv_retention.priority"),
        ({"priority": -1}, "kv_retention.priority"),
        ({"duration_s": 1e9}, "kv_retention.duration_s"),
        ({"duration_s": float("nan")}, "kv_retention.duration_s"),
        ({"first_tokens": 0}, "kv_retention.first_tokens"),
        ({"first_tokens": 1 << 40}, "kv_retention.first_tokens"),
        ({"prioritty": 3}, "kv_retention"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(said: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(said)
    assert refused.value.field == field


def test_what_is_left_out_has_a_value() -> None:
    assert read({}) == Retention(50, 300.0, None)
    assert read({"priority": 7, "duration_s": 1, "first_tokens": 9}) == Retention(7, 1.0, 9)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kv_eviction_policy": "lru"}, "--kv-eviction-policy lru"),
        ({"enable_prefix_caching": False}, "--no-enable-prefix-caching"),
    ],
)
def test_a_cache_that_heeds_nothing_says_so(options: dict[str, Any], named: str) -> None:
    with open_llm(**options) as llm, pytest.raises(InvalidRequest, match=named):
        ask(llm, DEAR, {"priority": 90})


@pytest.mark.parametrize("policy", ["lru", "retention"])
def test_a_policy_that_is_named_orders_from_the_start(policy: str) -> None:
    with open_llm(kv_eviction_policy=policy) as llm:
        (pool,) = llm.core.scheduler.kv.pools
        assert type(pool.free) is not OrderedDict
        answer, _ = ask(llm, DEAR)
        assert ask(llm, DEAR) == (answer, LENGTH - BLOCK)
        crowd(llm)
        assert ask(llm, DEAR) == (answer, 0)


def test_a_policy_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(Exception, match="lru"):
        open_llm(kv_eviction_policy="lfu")


def test_pools_that_are_reset_keep_nothing() -> None:
    with open_llm() as llm:
        answer, _ = ask(llm, DEAR, {"priority": 90})
        assert llm.reset_prefix_cache()
        assert ask(llm, DEAR) == (answer, 0)
        crowd(llm)
        assert ask(llm, DEAR) == (answer, 0)


@pytest.mark.parametrize(
    ("said", "status", "param"),
    [
        ({"priority": 90, "duration_s": 60}, 200, None),
        ({"priority": 1000}, 400, "kv_retention.priority"),
        ({"priority": 1, "first_token": 3}, 400, "kv_retention"),
    ],
)
def test_clients_say_it_over_http(said: dict[str, Any], status: int, param: str | None) -> None:
    engine = AsyncLLM(
        "scripted:",
        max_model_len=64,
        num_gpu_blocks_override=16,
        disable_frontend_multiprocessing=True,
    )
    app = HttpServer(engine, engine.config, {"openai": OpenAIRoutes(engine, engine.config)}).app

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", timeout=PATIENCE_S
        ) as client:
            return await client.post(
                "/v1/completions", json={"prompt": "hello", "max_tokens": 2, "kv_retention": said}
            )

    try:
        reply = asyncio.run(post())
    finally:
        engine.shutdown()
    assert reply.status_code == status, reply.text
    assert reply.json().get("error", {}).get("param") == param


def test_a_replay_evicts_the_same(tmp_path: Path) -> None:
    """Time is that of requests, so a journal has it, and is as much later as it was when it is
    replayed.
    """
    journal = str(tmp_path / "run.journal")
    without = ["no:structured_outputs", "no:fair_clients", "no:metrics_prometheus"]
    with open_llm(journal=journal, plugins=["core.testing.fake_model", *without]) as llm:
        ask(llm, DEAR, {"priority": 90, "duration_s": 0.001})
        ask(llm, stranger(0), {"priority": 80})
        crowd(llm, first=1)
        found = [ask(llm, prompt)[1] for prompt in (DEAR, stranger(0))]
        config = llm.config
    assert found == [0, LENGTH - BLOCK]
    report = replay(
        journal, policy=FirstCome(), extensions=[Eviction(Retaining(config), at_once=False)]
    )
    assert report.num_plans > 40
    assert report.difference is None
