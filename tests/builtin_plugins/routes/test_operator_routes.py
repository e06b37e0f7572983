"""Operator routes, `/invocations`, `/tokenizer_info`, and generation from token ids."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import mmap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.operator.invocations import InvocationRoutes
from builtin_plugins.routes.operator.profiling import Settings, StepProfiler
from builtin_plugins.routes.operator.routes import OperatorRoutes
from builtin_plugins.routes.probes.routes import ProbeRoutes
from builtin_plugins.routes.responses.routes import ResponsesRoutes
from builtin_plugins.routes.tokens.generate import TokenRoutes
from builtin_plugins.routes.tokens.tokenize import TokenizeRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import LLM, AsyncLLM
from core.api.execution import CallAnswer
from core.config import EngineConfig
from core.errors import ConfigError, InvalidRequest
from core.plugin import load_plan, make_plan
from core.testing.echo_engine import EchoEngine
from tests.timeouts import TIMEOUT_S

REGISTRY = load_plan(make_plan(["none", "tool_parsers", "reasoning_parsers"]))
GROUPS = (
    OpenAIRoutes,
    ResponsesRoutes,
    TokenizeRoutes,
    InvocationRoutes,
    TokenRoutes,
    OperatorRoutes,
    ProbeRoutes,
)
GENERATE = "/inference/v1/generate"
OPERATOR = [
    *(
        ("POST", path)
        for path in (
            "/pause",
            "/resume",
            "/reset_prefix_cache",
            "/collective_rpc",
            "/abort_requests",
        )
    ),
    *(("POST", path) for path in ("/reset_mm_cache", "/reset_encoder_cache", "/sleep", "/wake_up")),
    ("POST", "/release_kv_cache_memory"),
    *(("POST", path) for path in ("/start_profile", "/stop_profile")),
    *(("GET", path) for path in ("/is_paused", "/server_info", "/is_sleeping")),
]


class Api:
    """Routes of one engine, called in this process."""

    def __init__(self, engine: Any, **options: Any) -> None:
        self.engine = engine
        if isinstance(engine, EchoEngine):
            engine.registry = REGISTRY
        config = EngineConfig(options=options)
        self.app = HttpServer(engine, config, [make(engine, config) for make in GROUPS]).app

    def call(self, method: str, path: str, **request: Any) -> httpx.Response:
        return asyncio.run(self.send(method, path, **request))

    async def send(self, method: str, path: str, **request: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", timeout=TIMEOUT_S
        ) as client:
            return await client.request(method, path, **request)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.call("POST", path, json=body)


class Called(EchoEngine):
    """Records calls of features, and returns their data."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, bytes]] = []

    async def call(self, name: str, data: bytes = b"") -> list[CallAnswer]:
        self.calls.append((name, data))
        return [CallAnswer(scheduler=data)]


class Recorder(EchoEngine):
    """Lists all requests as unfinished."""

    def generate(self, prompt: Any, sampling: Any, request_id: str, **options: Any) -> Any:
        self.open.append(request_id)
        return super().generate(prompt, sampling, request_id, **options)


@pytest.fixture
def api() -> Api:
    return Api(
        Called(), tokens_only=True, enable_operator_routes=True, operator_calls=["acme.count"]
    )


@pytest.mark.parametrize(("method", "path"), OPERATOR)
def test_operator_routes_need_the_switch(method: str, path: str) -> None:
    plain = Api(EchoEngine())
    assert plain.call(method, path).status_code == 404
    assert path not in plain.call("GET", "/openapi.json").json()["paths"]


def test_operator_routes_without_key_log_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        keyed = Api(EchoEngine(), enable_operator_routes=True, api_key=["one"])
        assert not caplog.records
        Api(EchoEngine(), enable_operator_routes=True)
    assert "set an --api-key" in caplog.text
    for method, path in OPERATOR:
        assert keyed.call(method, path).status_code == 401


def test_unsupported_vllm_routes_name_missing_part(api: Api) -> None:
    reply = api.post("/sleep")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "not_served"
    assert "--enable-sleep-mode; /pause" in reply.json()["error"]["message"]
    assert "--profiler-config" in api.post("/start_profile").text
    assert "a reset of processed images" in api.post("/reset_mm_cache").text


def test_collective_rpc_allows_declared_calls(api: Api) -> None:
    assert api.post("/collective_rpc", method="acme.count", data="x").json() == {"results": ["x"]}
    assert api.engine.calls == [("acme.count", b"x")]
    for method in ("reload_weights", "pausing.rest"):
        error = api.post("/collective_rpc", method=method).json()["error"]
        assert error["param"] == "method"
        assert "--operator-calls (acme.count)" in error["message"]
    assert (
        api.post("/collective_rpc", method="acme.count", args=[1]).json()["error"]["param"]
        == "args"
    )


def test_server_info_hides_secrets() -> None:
    open_api = Api(EchoEngine(), enable_operator_routes=True, api_key=["a-secret"], host="::1")
    reply = open_api.call("GET", "/server_info", headers={"Authorization": "Bearer a-secret"})
    assert "a-secret" not in reply.text
    options = reply.json()["config"]["options"]
    assert (options["api_key"], options["host"]) == ("***", "::1")
    assert "tool_parsers" in reply.json()["plugins"]


def test_abort_requests_accepts_answer_ids(api: Api) -> None:
    async def abort(*request_ids: str) -> Any:
        api.engine.open = [
            "cmpl-a-0-0123abcd",
            "cmpl-a-1-0123abcd",
            "chatcmpl-b-0123abcd",
            "cmpl-ab-0-0123abcd",
        ]
        api.engine.aborted.clear()
        return (
            await api.send("POST", "/abort_requests", json={"request_ids": list(request_ids)})
        ).json()["aborted"]

    for request_ids, count in (
        (("cmpl-a",), 2),
        (("chatcmpl-b", "cmpl-ab"), 2),
        (("other",), 0),
        (("cmpl-a-1",), 1),
        ((), 4),
    ):
        assert asyncio.run(abort(*request_ids)) == count
        assert len(api.engine.aborted) == count


def test_prefix_cache_resets_when_unused(api: Api) -> None:
    assert api.post("/reset_prefix_cache").json() == {"status": "reset"}
    api.engine.open = ["a"]
    assert api.post("/reset_prefix_cache").status_code == 409


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, "chat.completion"),
        ({"prompt": "hi"}, "text_completion"),
        ({"input": "hi"}, "response"),
    ],
)
def test_invocation_is_forwarded_by_fields(api: Api, body: dict[str, Any], kind: str) -> None:
    reply = api.post("/invocations", **body)
    assert (reply.status_code, reply.json()["object"]) == (200, kind)
    stream = api.post("/invocations", **body, stream=True)
    assert stream.text.count("data: ") > 1


def test_invocation_errors_match_target_route(api: Api) -> None:
    assert (
        api.post("/invocations", prompt="a", temperature=-1).json()["error"]["param"]
        == "temperature"
    )
    assert api.post("/invocations").json()["error"]["param"] == "prompt"
    for content in (b"", b"[1]", b"{", b'"a"'):
        reply = api.call(
            "POST", "/invocations", content=content, headers={"Content-Type": "application/json"}
        )
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "body")
    crowded = b'{"prompt": [' + b"1," * 200_000 + b"1]}"
    assert api.call("POST", "/invocations", content=crowded).json()["error"]["param"] == "body"


def test_unserved_path_returns_404() -> None:
    engine = EchoEngine()
    config = EngineConfig()
    alone = Api(engine)
    alone.app = HttpServer(engine, config, [InvocationRoutes(engine, config)]).app
    assert alone.post("/invocations", prompt="a").status_code == 404


def test_generate_returns_token_ids(api: Api) -> None:
    reply = api.post(
        GENERATE, token_ids=[72, 105], sampling_params={"max_tokens": 2, "logprobs": 1}
    ).json()
    (choice,) = reply["choices"]
    assert (choice["token_ids"], choice["finish_reason"]) == ([72, 105], "stop")
    assert [each["token"] for each in choice["logprobs"]["content"]] == [
        "token_id:72",
        "token_id:105",
    ]
    assert reply["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    assert reply["request_id"].startswith("generate-tokens-")
    assert api.engine.sampling[-1].detokenize is False


def test_generate_streams_token_ids(api: Api) -> None:
    body = {
        "token_ids": [72, 105, 33],
        "stream": True,
        "stream_options": {"include_usage": True},
        "request_id": "mine",
    }
    blocks = api.post(GENERATE, **body).text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]
    assert [
        token for chunk in chunks for choice in chunk["choices"] for token in choice["token_ids"]
    ] == [72, 105, 33]
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert {chunk["request_id"] for chunk in chunks} == {"generate-tokens-mine"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "token_ids"),
        ({"token_ids": "a"}, "token_ids"),
        ({"token_ids": [1] * 300}, "token_ids"),
        ({"token_ids": [1], "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"token_ids": [1], "sampling_params": {"tempreature": 1}}, "sampling_params.tempreature"),
        ({"token_ids": [1], "features": {"mm_hashes": {}}}, "features"),
        ({"token_ids": [1], "kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
    ],
)
def test_generate_errors_name_field(api: Api, body: dict[str, Any], field: str) -> None:
    reply = api.post(GENERATE, **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)


def test_generate_route_needs_tokens_only() -> None:
    assert Api(EchoEngine()).post(GENERATE, token_ids=[1]).status_code == 404
    assert Api(EchoEngine(), tokens_only=True).post("/abort_requests").status_code == 200


def test_tokens_only_aborts_own_requests_only() -> None:
    one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
    api = Api(Recorder(), tokens_only=True, api_key=["one", "two"])

    def abort(headers: dict[str, str], *request_ids: str) -> tuple[int, list[str]]:
        api.engine.aborted.clear()
        body = {"request_ids": list(request_ids)}
        reply = api.call("POST", "/abort_requests", json=body, headers=headers)
        return reply.json()["aborted"], list(api.engine.aborted)

    for headers, name in ((one, "a"), (two, "b-0123456789abcdef01234567")):
        body = {"token_ids": [72], "request_id": name}
        assert api.call("POST", GENERATE, json=body, headers=headers).status_code == 200
    first, second = api.engine.open
    api.engine.open.append("chatcmpl-c-0123abcd")  # of a route without owners
    assert abort(one) == (1, [first])
    assert abort(two) == (1, [second])
    assert abort(two, "generate-tokens-a") == (0, [])
    assert abort(two, first) == (0, [])
    assert abort(one, "generate-tokens-a") == (1, [first])
    operator = Api(api.engine, tokens_only=True, enable_operator_routes=True, api_key=["two"])
    assert operator.call("POST", "/abort_requests", json={}, headers=two).json()["aborted"] == 3


def test_tokenizer_info_needs_the_switch() -> None:
    assert Api(EchoEngine()).call("GET", "/tokenizer_info").status_code == 404
    info = (
        Api(EchoEngine(), enable_tokenizer_info_endpoint=True).call("GET", "/tokenizer_info").json()
    )
    assert (info["tokenizer_class"], info["chat_template"]) == ("ByteTokenizer", None)
    assert info["vocab_size"] > 256


@pytest.fixture(scope="module")
def pausable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """An engine with pause, sleep and profiler."""
    folder = str(tmp_path_factory.mktemp("traces"))
    options: dict[str, Any] = {
        "enable_operator_routes": True,
        "enable_sleep_mode": True,
        "profiler_config": {
            "torch_profiler_dir": folder,
            "max_iterations": 3,
            "torch_profiler_with_stack": False,
        },
    }
    engine = AsyncLLM(
        "scripted:",
        **options,
        disable_frontend_multiprocessing=True,
        max_model_len=512,
        max_num_seqs=4,
        num_threads=1,
        log_level="error",
    )
    try:
        yield Api(engine, **options)
    finally:
        engine.shutdown()


MESSAGES = [{"role": "user", "content": "some words " * 10}]


async def running(api: Api, count: int = 1) -> list[asyncio.Task[httpx.Response]]:
    """Start requests; return when all are running."""
    pending = [
        asyncio.ensure_future(api.send("POST", "/v1/chat/completions", json={"messages": MESSAGES}))
        for _ in range(count)
    ]
    while len(api.engine.open_ids()) < count:
        await asyncio.sleep(0.001)
    return pending


async def num_running(api: Api) -> int:
    (answer,) = await api.engine.call("pausing.state")
    return int(answer.scheduler.split()[1])


def test_paused_requests_resume_with_identical_output(pausable: Api) -> None:
    async def rest() -> list[Any]:
        results = [(await pausable.send("POST", "/pause?mode=keep")).json()]
        pending = await running(pausable, 6)
        results.append((await pausable.send("GET", "/is_paused")).json())
        for _ in range(20):
            await pausable.engine.call("pausing.state")  # as many turns of the engine's loop
        results.append([task.done() for task in pending])
        results.append((await pausable.send("POST", "/resume")).json())
        replies = await asyncio.gather(*pending)
        results.append((await pausable.send("GET", "/is_paused")).json())
        return [*results, {reply.json()["choices"][0]["message"]["content"] for reply in replies}]

    paused, is_paused, done, resumed, goes_on, texts = asyncio.run(rest())
    assert (paused, resumed) == ({"status": "paused"}, {"status": "resumed"})
    assert (is_paused, goes_on) == ({"is_paused": True}, {"is_paused": False})
    assert done == [False] * 6
    assert len(texts) == 1


def test_pause_abort_ends_running_requests(pausable: Api) -> None:
    async def end() -> list[str]:
        await pausable.send("POST", "/pause?mode=keep")
        pending = await running(pausable, 3)
        await pausable.send("POST", "/pause?mode=abort")
        replies = await asyncio.gather(*pending)
        await pausable.send("POST", "/resume")
        return [reply.json()["choices"][0]["finish_reason"] for reply in replies]

    assert asyncio.run(end()) == ["abort"] * 3


def test_pause_wait_finishes_running_requests(pausable: Api) -> None:
    async def wait() -> list[str]:
        pending = await running(pausable, 3)
        while not any(task.done() for task in pending) and await num_running(pausable) == 0:
            await asyncio.sleep(0.001)
        await pausable.send("POST", "/pause?mode=wait")
        assert await num_running(pausable) == 0
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        await pausable.send("POST", "/resume")
        replies = await asyncio.gather(*pending)
        return [reply.json()["choices"][0]["finish_reason"] for reply in replies]

    assert asyncio.run(wait()) == ["stop"] * 3


def test_pause_stops_chunked_prefill(pausable: Api) -> None:
    async def rest() -> str:
        pending = await running(pausable)
        await pausable.send("POST", "/pause?mode=keep")
        before = [(await pausable.engine.call("pausing.state"))[0] for _ in range(20)]
        assert len({answer.scheduler for answer in before}) == 1
        await pausable.send("POST", "/resume")
        (reply,) = await asyncio.gather(*pending)
        return str(reply.json()["choices"][0]["finish_reason"])

    assert asyncio.run(rest()) == "stop"


def test_unknown_pause_mode_is_rejected(pausable: Api) -> None:
    assert pausable.call("POST", "/pause?mode=later").json()["error"]["param"] == "mode"


def test_sleep_releases_cache_and_wake_up_resumes(pausable: Api) -> None:
    async def sleep() -> tuple[Any, ...]:
        before = (
            await pausable.send("POST", "/v1/chat/completions", json={"messages": MESSAGES})
        ).json()
        left = await running(pausable)
        fallen = (await pausable.send("POST", "/sleep")).json()
        (ended,) = await asyncio.gather(*left)
        asleep = (await pausable.send("GET", "/is_sleeping")).json()
        (waiting,) = await running(pausable)
        for _ in range(20):
            await pausable.engine.call("pausing.state")  # as many turns of the engine's loop
        waits = not waiting.done()
        half = (await pausable.send("POST", "/wake_up?tags=weights")).json()
        woken = (await pausable.send("POST", "/wake_up?tags=weights&tags=kv_cache")).json()
        after = (await waiting).json()
        awake = (await pausable.send("GET", "/is_sleeping")).json()
        return before, ended.json(), fallen, asleep, waits, half, woken, after, awake

    before, ended, fallen, asleep, waits, half, woken, after, awake = asyncio.run(sleep())
    assert ended["choices"][0]["finish_reason"] == "abort"
    assert (fallen["status"], half, woken) == ("asleep", {"status": "asleep"}, {"status": "awake"})
    assert (asleep, waits, awake) == ({"is_sleeping": True}, True, {"is_sleeping": False})
    assert after["choices"] == before["choices"]
    assert after["usage"]["prompt_tokens"] == before["usage"]["prompt_tokens"]


def test_kv_cache_is_released_and_restored_without_a_sleep(pausable: Api) -> None:
    async def release() -> tuple[Any, ...]:
        post = {"json": {"messages": MESSAGES}}
        before = (await pausable.send("POST", "/v1/chat/completions", **post)).json()
        left = await running(pausable)
        released = (await pausable.send("POST", "/release_kv_cache_memory")).json()
        (ended,) = await asyncio.gather(*left)
        again = await pausable.send("POST", "/release_kv_cache_memory")
        (waiting,) = await running(pausable)
        half = (await pausable.send("POST", "/wake_up?tags=weights")).json()
        woken = (await pausable.send("POST", "/wake_up?tags=kv_cache")).json()
        after = (await waiting).json()
        return before, ended.json(), released, again.status_code, half, woken, after

    before, ended, released, again, half, woken, after = asyncio.run(release())
    assert ended["choices"][0]["finish_reason"] == "abort"
    assert (released["status"], again) == ("released", 409)
    assert (half, woken) == ({"status": "asleep"}, {"status": "awake"})
    assert after["choices"] == before["choices"]


def test_release_returns_written_pages() -> None:
    import numpy as np

    from builtin_plugins.routes.operator.sleep import MemoryReleaser

    memory = np.full(1 << 24, 7, dtype=np.uint8)

    class Tensor:
        nbytes = memory.nbytes

        def data_ptr(self) -> int:
            return int(memory.ctypes.data)

    class Parts:
        device = "cpu"
        memory = {(0, 0): Tensor()}

    half = MemoryReleaser(None)
    half.loaded(SimpleNamespace(facts={}))  # type: ignore[arg-type]
    half.attach(Parts())  # type: ignore[arg-type]
    for verb, data in (("sleep", b"1"), ("release", b"")):
        memory[:] = 7
        answer = half.call(verb, data)
        assert answer is not None
        # whole pages only, and other threads may take some meanwhile
        assert int(answer) > memory.nbytes // 2
        assert not memory[mmap.PAGESIZE : -mmap.PAGESIZE].any()
    assert half.call("state", b"") is None


def test_sleep_without_switch_is_rejected(pausable: Api) -> None:
    assert pausable.call("POST", "/sleep?level=3").json()["error"]["param"] == "level"
    assert pausable.call("POST", "/wake_up?tags=all").json()["error"]["param"] == "tags"


def test_profile_writes_one_file_per_rank(pausable: Api) -> None:
    async def profile() -> tuple[Any, ...]:
        fields = {"json": {"messages": MESSAGES}}
        assert (await pausable.send("POST", "/stop_profile")).status_code == 409
        await pausable.send("POST", "/start_profile")
        twice = (await pausable.send("POST", "/start_profile")).status_code
        await pausable.send(
            "POST", "/v1/chat/completions", **fields
        )  # more than three steps: they end it
        over = (await pausable.send("POST", "/stop_profile")).status_code
        await pausable.send("POST", "/start_profile")
        stopped = (await pausable.send("POST", "/stop_profile")).json()
        return twice, over, stopped

    twice, over, stopped = asyncio.run(profile())
    assert (twice, over) == (409, 409)
    (file,) = stopped["files"]
    traces = sorted(Path(file).parent.iterdir())
    assert [trace.name.split(".")[0] for trace in traces] == ["rank0", "rank0"]
    events = json.loads(gzip.decompress(traces[0].read_bytes()))["traceEvents"]
    assert any(event.get("cat") == "cpu_op" for event in events)


def test_collective_rpc_ends_at_its_timeout_and_takes_no_kwargs() -> None:
    class Slow(Called):
        async def call(self, name: str, data: bytes = b"") -> list[CallAnswer]:
            await asyncio.Event().wait()
            return []

    api = Api(Slow(), enable_operator_routes=True, operator_calls=["acme.count"])
    assert api.post("/collective_rpc", method="acme.count", timeout=0.01).status_code == 504
    for more in ({"kwargs": {"a": 1}}, {"args": [1]}):
        refused = api.post("/collective_rpc", method="acme.count", **more)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "args")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"torch_profiler_dir": ""}, "torch_profiler_dir: expected `str` of length >= 1"),
        ({"torch_profiler_dri": "x"}, "object contains unknown field `torch_profiler_dri`"),
        ({"profiler": "torch"}, "object missing required field `torch_profiler_dir`"),
        ({"profiler": "cuda"}, "profiler: got 'cuda'; expected 'torch'. Remove it."),
        (
            {"torch_profiler_dir": "x", "ignore_frontend": False},
            "ignore_frontend: got False; expected True. Remove it.",
        ),
    ],
)
def test_invalid_profiler_config_names_key(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.of(given)
    assert str(caught.value).startswith("--profiler-config")
    assert message in str(caught.value)
    assert Settings.of({}) is None


def test_profiler_config_alone_serves_the_profile_routes(tmp_path: Path) -> None:
    config = {"torch_profiler_dir": str(tmp_path)}
    called = Called()
    api = Api(called, profiler_config=config)
    assert api.call("POST", "/pause").status_code == 404
    api.call("POST", "/start_profile")
    api.call("POST", "/stop_profile")
    assert [name for name, _ in called.calls] == ["profiling.start", "profiling.stop"]
    for path in ("/start_profile", "/stop_profile"):
        assert (
            Api(EchoEngine(), profiler_config=config, api_key=["one"]).post(path).status_code == 401
        )


@pytest.mark.parametrize("logs_sums", [True, False])
def test_llm_profiles_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, logs_sums: bool
) -> None:
    config = {
        "torch_profiler_dir": str(tmp_path),
        "torch_profiler_dump_cuda_time_total": logs_sums,
        "torch_profiler_use_gzip": False,
        "torch_profiler_with_stack": False,
    }
    with LLM("scripted:", max_model_len=64, profiler_config=config) as llm:
        with pytest.raises(InvalidRequest, match="no profile is under way"):
            llm.stop_profile()
        llm.start_profile()
        llm.generate("one", use_tqdm=False)
        with caplog.at_level(logging.INFO):
            (file,) = llm.stop_profile()
    assert json.loads(Path(file).read_text())["traceEvents"]
    assert ("Self CPU" in caplog.text) == logs_sums


@pytest.mark.parametrize(
    ("key", "argument"),
    [
        ("torch_profiler_record_shapes", "record_shapes"),
        ("torch_profiler_with_memory", "profile_memory"),
        ("torch_profiler_with_stack", "with_stack"),
        ("torch_profiler_with_flops", "with_flops"),
    ],
)
def test_keys_of_the_profiler_are_arguments_of_torch(
    key: str, argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []

    class Profile:
        def __init__(self, **arguments: Any) -> None:
            given.append(arguments)

        def start(self) -> None:
            """Start nothing."""

    monkeypatch.setattr("torch.profiler.profile", Profile)
    for value in (False, True):
        settings = Settings.of({"torch_profiler_dir": "x", key: value})
        assert settings is not None
        StepProfiler(settings).call("start", b"")
        assert given[-1][argument] is value


def test_delay_iterations_skips_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.of({"torch_profiler_dir": "x", "delay_iterations": 2})
    assert settings is not None
    profiler = StepProfiler(settings)
    started: list[int] = []
    monkeypatch.setattr(profiler, "_start", lambda: started.append(profiler._steps))
    profiler.call("start", b"")
    assert started == []
    for _ in range(3):
        profiler.begin(None)
    assert started == [3]


def test_llm_without_profiler_config_names_it() -> None:
    with (
        LLM("scripted:", max_model_len=64) as llm,
        pytest.raises(InvalidRequest, match="profiler_config: is not set"),
    ):
        llm.start_profile()


def test_server_info_shows_plugin_faults(pausable: Api) -> None:
    seldom = pausable.engine.registry.hooks.fault_log
    seldom.count("routes_operator", "OSError: gone")
    health = {
        each["name"]: each for each in pausable.call("GET", "/server_info").json()["plugin_health"]
    }
    del seldom.counted["routes_operator"]
    assert (health["routes_operator"]["faults"], health["routes_operator"]["error"]) == (
        1,
        "OSError: gone",
    )
    assert health["routes_openai"]["faults"] == 0
