"""`kv_retention` of requests: hits, rejected values, and equal tokens in any case."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from pathlib import Path
from typing import Any

import httpx
import pytest

from builtin_plugins.kv_eviction.admission import read
from builtin_plugins.kv_eviction.api import Retention
from builtin_plugins.kv_eviction.policies import RetentionPolicy
from builtin_plugins.kv_eviction.scheduling import Eviction
from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.scheduling_policies.fcfs import FirstCome
from builtin_plugins.servers.http.server import HttpServer
from core import LLM, AsyncLLM, SamplingParams
from core.api import InvalidRequest
from core.testing.invariants import check_scheduler
from core.testing.replay import replay
from tests.timeouts import TIMEOUT_S

PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)
BLOCK = 8
LENGTH = 64
PROMPT = [2 + (5 * j) % 60 for j in range(LENGTH)]


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


def other_prompt(number: int) -> list[int]:
    return [2 + (number * 7 + j * (number + 2)) % 60 for j in range(LENGTH)]


def generate(llm: LLM, prompt: list[int], retention: Any = None) -> tuple[list[int], int]:
    """Return the output tokens, and the number of cached prompt tokens."""
    params = {} if retention is None else {"kv_retention": retention}
    (output,) = llm.generate([prompt], PARAMS, use_tqdm=False, **params)
    check_scheduler(llm.core.scheduler)
    return list(output.outputs[0].token_ids), output.num_cached_tokens or 0


def fill_cache(llm: LLM, retention: Any = None, first: int = 0) -> None:
    """Run more prompts than the cache holds."""
    for number in range(first, first + 8):
        generate(llm, other_prompt(number), retention)


@pytest.mark.parametrize(
    ("retention", "others", "found"),
    [
        (None, None, 0),
        ({"priority": 90}, None, LENGTH - BLOCK),
        ({"priority": 90, "first_tokens": 3 * BLOCK + 1}, None, 3 * BLOCK),
        ({"priority": 90, "duration_s": 0}, None, 0),
        (None, {"priority": 10}, LENGTH - BLOCK),
        ({"priority": 60}, {"priority": 90}, 0),
    ],
)
def test_retained_blocks_survive_other_requests(retention: Any, others: Any, found: int) -> None:
    with open_llm(kv_retention_share=0.5) as llm:
        answer, _ = generate(llm, PROMPT, retention)
        fill_cache(llm, others)
        assert generate(llm, PROMPT) == (answer, found)


def test_pool_queue_is_replaced_by_first_retention() -> None:
    with open_llm() as llm:
        generate(llm, PROMPT)
        (pool,) = llm.core.scheduler.kv.pools
        assert type(pool.free_queue) is OrderedDict
        generate(llm, PROMPT, {"priority": 50})
        assert type(pool.free_queue) is not OrderedDict


def test_earlier_blocks_have_default_priority() -> None:
    with open_llm() as llm:
        answer, _ = generate(llm, PROMPT)
        generate(llm, PROMPT, {"priority": 0})
        generate(llm, other_prompt(1))
        generate(llm, other_prompt(2))
        assert generate(llm, PROMPT) == (answer, LENGTH - BLOCK)


def test_retention_share_leaves_room_for_others() -> None:
    with open_llm(kv_retention_share=0.3) as llm:
        fill_cache(llm, {"priority": 100, "duration_s": 86400})
        fill_cache(llm, first=20)
        found = [generate(llm, other_prompt(number))[1] for number in (27, 26)]
        assert found[0] == LENGTH - BLOCK
        assert (
            sum(generate(llm, other_prompt(number))[1] for number in range(8)) <= 0.3 * 30 * BLOCK
        )


@pytest.mark.parametrize(
    ("retention", "field"),
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
def test_invalid_kv_retention_is_rejected(retention: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(retention)
    assert refused.value.field == field


def test_kv_retention_defaults() -> None:
    assert read({}) == Retention(50, 300.0, None)
    assert read({"priority": 7, "duration_s": 1, "first_tokens": 9}) == Retention(7, 1.0, 9)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kv_eviction_policy": "lru"}, "--kv-eviction-policy lru"),
        ({"enable_prefix_caching": False}, "--no-enable-prefix-caching"),
    ],
)
def test_kv_retention_rejected_when_ignored(options: dict[str, Any], named: str) -> None:
    with open_llm(**options) as llm, pytest.raises(InvalidRequest, match=named):
        generate(llm, PROMPT, {"priority": 90})


@pytest.mark.parametrize("policy", ["lru", "retention"])
def test_named_policy_is_installed_at_start(policy: str) -> None:
    with open_llm(kv_eviction_policy=policy) as llm:
        (pool,) = llm.core.scheduler.kv.pools
        assert type(pool.free_queue) is not OrderedDict
        answer, _ = generate(llm, PROMPT)
        assert generate(llm, PROMPT) == (answer, LENGTH - BLOCK)
        fill_cache(llm)
        assert generate(llm, PROMPT) == (answer, 0)


def test_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(Exception, match="lru"):
        open_llm(kv_eviction_policy="lfu")


def test_pool_reset_clears_retention() -> None:
    with open_llm() as llm:
        answer, _ = generate(llm, PROMPT, {"priority": 90})
        assert llm.reset_prefix_cache()
        assert generate(llm, PROMPT) == (answer, 0)
        fill_cache(llm)
        assert generate(llm, PROMPT) == (answer, 0)


@pytest.mark.parametrize(
    ("retention", "status", "param"),
    [
        ({"priority": 90, "duration_s": 60}, 200, None),
        ({"priority": 1000}, 400, "kv_retention.priority"),
        ({"priority": 1, "first_token": 3}, 400, "kv_retention"),
    ],
)
def test_kv_retention_over_http(retention: dict[str, Any], status: int, param: str | None) -> None:
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
            transport=transport, base_url="http://test", timeout=TIMEOUT_S
        ) as client:
            return await client.post(
                "/v1/completions",
                json={"prompt": "hello", "max_tokens": 2, "kv_retention": retention},
            )

    try:
        reply = asyncio.run(post())
    finally:
        engine.shutdown()
    assert reply.status_code == status, reply.text
    assert reply.json().get("error", {}).get("param") == param


def test_replay_evicts_the_same_blocks(tmp_path: Path) -> None:
    """The policy uses request arrival times, which the journal records."""
    journal = str(tmp_path / "run.journal")
    without = ["no:structured_outputs", "no:fair_scheduling", "no:metrics_prometheus"]
    with open_llm(journal=journal, plugins=["core.testing.fake_model", *without]) as llm:
        generate(llm, PROMPT, {"priority": 90, "duration_s": 0.001})
        generate(llm, other_prompt(0), {"priority": 80})
        fill_cache(llm, first=1)
        found = [generate(llm, prompt)[1] for prompt in (PROMPT, other_prompt(0))]
        config = llm.config
    assert found == [0, LENGTH - BLOCK]
    report = replay(
        journal, policy=FirstCome(), extensions=[Eviction(RetentionPolicy(config), at_once=False)]
    )
    assert report.num_plans > 40
    assert report.difference is None
