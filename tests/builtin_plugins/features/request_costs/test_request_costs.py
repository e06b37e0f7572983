"""Costs of requests: how they are divided, and where they are reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from builtin_plugins.features.request_costs.messages import Cost, StepCost
from builtin_plugins.features.request_costs.scheduling import CostAccounts
from builtin_plugins.routes.anthropic.routes import AnthropicRoutes
from builtin_plugins.routes.explain.history import RecentRequests
from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.responses.routes import ResponsesRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import LLM, AsyncLLM, SamplingParams
from core.api.execution import StepPlan
from core.api.telemetry import RequestStats
from core.config import EngineConfig
from core.step import NewRow
from tests.in_process import send_to

BLOCK_BYTES = 1000
COLUMNS = ("ended", "new", "blocks", "rows", "starts", "counts", "samples")
EMPTY: dict[str, Any] = {column: [] for column in COLUMNS}
SETTINGS: dict[str, Any] = {
    "max_model_len": 256,
    "num_gpu_blocks_override": 64,
    "num_threads": 1,
    "request_costs": True,
}


@dataclass
class FakeRequest:
    request_id: str
    feature_outputs: dict[str, bytes] = field(default_factory=dict)

    @property
    def cost(self) -> Cost:
        """The reported costs."""
        return msgspec.msgpack.decode(self.feature_outputs["request_costs"], type=Cost)


class Ledger:
    """Accounts with a clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.accounts = CostAccounts(lambda: self.now_s)
        group = SimpleNamespace(pool=0)
        pool = SimpleNamespace(block_bytes=BLOCK_BYTES)
        layout = SimpleNamespace(groups=[group], pools=[pool])
        self.accounts.attach(SimpleNamespace(kv=SimpleNamespace(layout=layout)))
        self.steps = 0

    def plan(self, now_s: float, cpu_s: float = 0.0, ranks: int = 1, **fields: Any) -> None:
        """Plan a step, and report the time that each rank takes for it."""
        self.now_s = now_s
        self.steps += 1
        payload = self.accounts.planned(StepPlan(**{**EMPTY, "step": self.steps, **fields}))
        if payload is None:
            return
        assert int.from_bytes(payload, "little") == self.steps
        for _ in range(ranks):
            self.accounts.result(msgspec.msgpack.encode(StepCost(self.steps, cpu_s)))


def new_row(row: int, request: FakeRequest, blocks: list[int]) -> NewRow:
    return NewRow(row, request.request_id, [], 0, SamplingParams(), 0, (), [blocks])


def test_steps_are_divided_by_tokens_and_blocks_by_time() -> None:
    ledger = Ledger()
    first = FakeRequest("a")
    second = FakeRequest("b")
    for request in (first, second):
        ledger.accounts.arrived(request)
    ledger.plan(
        1.0,
        cpu_s=0.4,
        ranks=2,
        new=[new_row(0, first, [5, 6]), new_row(3, second, [7, 0])],
        rows=[0, 3],
        starts=[0, 0],
        counts=[30, 10],
        samples=[0],
    )
    ledger.plan(2.0, cpu_s=0.2, decode_rows=[0], rows=[3], starts=[10], counts=[1], samples=[0])
    ledger.plan(3.0, blocks=[(3, 0, [8])], decode_rows=[0, 3], num_draft_tokens=[2, 0])
    ledger.now_s = 5.0
    assert not ledger.accounts.finished(first)
    ledger.plan(6.0, ended=[0, 3])  # the second one is preempted
    ledger.now_s = 9.0
    ledger.accounts.finished(second)
    assert first.cost.computed_tokens == 30 + 1 + 3
    assert first.cost.cpu_s == pytest.approx(2 * 0.4 * 30 / 40 + 0.2 / 2)
    assert first.cost.kv_byte_s == 2 * BLOCK_BYTES * 4.0
    assert second.cost.computed_tokens == 10 + 1 + 1
    assert second.cost.cpu_s == pytest.approx(2 * 0.4 * 10 / 40 + 0.2 / 2)
    assert second.cost.kv_byte_s == BLOCK_BYTES * 2.0 + 2 * BLOCK_BYTES * 3.0


def test_step_without_tokens_needs_no_report() -> None:
    assert Ledger().accounts.planned(StepPlan(step=1, **EMPTY)) is None


@pytest.mark.parametrize("depth", [1, 2], ids=["in turns", "ahead"])
def test_costs_grow_with_what_a_request_computes(depth: int) -> None:
    with LLM("scripted:", async_scheduling=depth == 2, **SETTINGS) as llm:
        params = SamplingParams(max_tokens=4, ignore_eos=True)
        short = llm.generate("one", params, use_tqdm=False)[0]
        long = llm.generate("two " * 40, params, use_tqdm=False)[0]
        again = llm.generate("two " * 40, params, use_tqdm=False)[0]
    costs = [output.counts for output in (short, long, again)]
    prompts = [len(output.prompt_token_ids or ()) for output in (short, long, again)]
    computed = [cost["request_cost_computed_tokens"] for cost in costs]
    assert again.num_cached_tokens
    assert computed[0] >= prompts[0] + 3
    assert computed[1] - computed[0] == prompts[1] - prompts[0]
    assert computed[1] - computed[2] == again.num_cached_tokens
    assert all(cost["request_cost_cpu_seconds"] > 0 for cost in costs)
    assert all(cost["request_cost_kv_byte_seconds"] > 0 for cost in costs)


def test_nothing_is_measured_by_default() -> None:
    with LLM("scripted:", **{**SETTINGS, "request_costs": False}) as llm:
        assert llm.generate("one", use_tqdm=False)[0].counts == {}


@pytest.fixture(scope="module")
def app() -> Iterator[Any]:
    engine = AsyncLLM("scripted:", disable_frontend_multiprocessing=True, **SETTINGS)
    config = EngineConfig()
    kinds = (OpenAIRoutes, ResponsesRoutes, AnthropicRoutes)
    yield HttpServer(engine, engine.config, [kind(engine, config) for kind in kinds]).app
    engine.shutdown()


MESSAGES = [{"role": "user", "content": "one two three"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 4},
    "/v1/completions": {"prompt": ["one", "two three"], "n": 2, "max_tokens": 4},
    "/v1/responses": {"input": "one two three", "max_output_tokens": 16},
    "/v1/messages": {"model": "scripted:", "messages": MESSAGES, "max_tokens": 4},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_usage_of_every_protocol_has_the_cost(app: Any, path: str, stream: bool) -> None:
    body = {**BODIES[path], "stream": stream}
    if stream and "completions" in path:
        body["stream_options"] = {"include_usage": True}
    answer = send_to(app, "POST", path, json=body)
    assert answer.status_code == 200, answer.text
    if not stream:
        usages = [answer.json()["usage"]]
    else:
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        events = [json.loads(line) for line in lines]
        found = [event.get("usage") or event.get("response", {}).get("usage") for event in events]
        usages = [usage for usage in found if usage and "cost" in usage]
    usage = usages[-1]
    tokens = usage.get("total_tokens") or usage["input_tokens"] + usage["output_tokens"]
    assert set(usage["cost"]) == {"cpu_seconds", "kv_byte_seconds", "computed_tokens"}
    assert 0 < usage["cost"]["computed_tokens"] <= 2 * tokens
    assert usage["cost"]["cpu_seconds"] > 0


def test_explain_says_what_a_request_cost() -> None:
    recent = RecentRequests(EngineConfig(options={"enable_operator_routes": True}))
    cost = Cost(0.25, 3_500_000.0, 40).counts()
    recent.request(
        RequestStats("stop", 30, 10, 1.0, request_id="chatcmpl-x", extra_fields={"counts": cost})
    )
    sentences = " ".join(recent.sentences("chatcmpl-x"))
    assert "its steps took 0.250 s of processors for 40 positions" in sentences
    assert "3.500 MB times seconds" in sentences
