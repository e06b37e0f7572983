"""Several API servers on one port: deaths, balancing, sums; and a server for each rank."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from builtin_plugins.features.multimodal.store import PREFIX, SHARED_MEMORY
from tests.system.proofs.test_api_death import BROKEN, Service, is_gone, serving, wait_for
from tests.system.proofs.test_resumed_streams import BODIES, Reader, kill_api
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.slow

SLOW = ("--scripted-tokens-per-second", "10")
TEXT = "a prompt that the scripted model repeats token by token, " * 2


def children(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")  # each thread has its own
    return {int(each) for task in tasks for each in task.read_text().split()}


def api_servers(service: Service) -> set[int]:
    """Return the API servers: the children of the process that has the broker."""
    return {pid for pid in children(service.api()) if not is_gone(pid)}


def engines(service: Service) -> set[int]:
    return {pid for pid, name in service.below().items() if not name.startswith("engine-")}


def owner_of(stream: httpx.Response, servers: set[int]) -> int:
    """Return the process that has the other end of a connection."""
    found: socket.socket = stream.extensions["network_stream"].get_extra_info("socket")
    port = f":{found.getsockname()[1]:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[2].endswith(port):
            for pid in servers:
                for link in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(OSError):  # closed meanwhile
                        if os.readlink(link) == f"socket:[{fields[9]}]":
                            return pid
    raise AssertionError(f"no process has the connection {port}")


def text_of(lines: list[str]) -> str:
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(each["choices"][0]["text"] for each in events if each["choices"])


def metric(page: str, name: str, **labels: str) -> float:
    found = 0.0
    for line in page.splitlines():
        match = re.fullmatch(rf"{name}{{([^}}]*)}} (\S+)", line)
        if match and all(f'{key}="{value}"' in match[1] for key, value in labels.items()):
            found += float(match[2])
    return found


def page_of(service: Service) -> str:
    return httpx.get(f"{service.url}/metrics", timeout=TIMEOUT_S).text


def test_killed_api_server_ends_its_own_streams_only(tmp_path: Path) -> None:
    flags = ("-dp", "2", "--api-server-count", "2", *SLOW)
    with serving(tmp_path, "scripted:", *flags) as service:
        wait_for(lambda: len(api_servers(service)) == 2)
        same = engines(service)
        assert len(same) == 2
        servers = api_servers(service)
        fields = {"model": "tiny", "prompt": TEXT, "max_tokens": 200, "stream": True}
        with httpx.Client(base_url=service.url, timeout=TIMEOUT_S) as client:
            streams: list[Any] = []
            owners: list[int] = []
            while not all(owners.count(pid) >= 2 for pid in servers):
                assert len(streams) < 64, owners
                sending = client.build_request("POST", "/v1/completions", json=fields)
                streams.append(client.send(sending, stream=True))
                owners.append(owner_of(streams[-1], servers))
            killed = owners[0]
            os.kill(killed, signal.SIGKILL)
            for stream, owner in zip(streams, owners, strict=True):
                if owner == killed:
                    with pytest.raises(BROKEN):
                        list(stream.iter_lines())
                else:
                    lines = list(stream.iter_lines())
                    assert lines[-2] == "data: [DONE]"
                    assert text_of(lines) == TEXT
        assert engines(service) == same
        wait_for(lambda: len(api_servers(service)) == 2)
        assert killed not in api_servers(service)
        wait_for(
            lambda: httpx.get(f"{service.url}/health", timeout=TIMEOUT_S).json()["running"] == 0
        )
        health = httpx.get(f"{service.url}/health", timeout=TIMEOUT_S).json()
        assert health["open_requests"] == 0
        assert health["restarts"] == 0
        survivors = sum(owner != killed for owner in owners)
        assert metric(page_of(service), "engine_request_success_total", finished_reason="stop") == (
            survivors
        )


def test_equal_requests_are_balanced_whichever_api_server_has_them(tmp_path: Path) -> None:
    flags = ("-dp", "4", "--api-server-count", "2", "--max-num-seqs", "64", "--num-threads", "1")

    async def main(service: Service) -> list[float]:
        limits = httpx.Limits(max_connections=80)
        async with httpx.AsyncClient(
            base_url=service.url, timeout=TIMEOUT_S, limits=limits
        ) as client:
            fields = {"model": "tiny", "prompt": TEXT, "max_tokens": 300}
            # Connections are there before the requests.
            await asyncio.gather(*(client.get("/livez") for _ in range(64)))
            tasks = [
                asyncio.ensure_future(client.post("/v1/completions", json=fields))
                for _ in range(64)
            ]
            while (await client.get("/health")).json()["running"] < 64:
                assert not any(task.done() for task in tasks)
                await asyncio.sleep(0.05)
            page = (await client.get("/metrics")).text
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        name = "engine_num_requests_running"
        return [metric(page, name, engine=str(rank)) for rank in range(4)]

    with serving(tmp_path, "scripted:", *flags, "--scripted-tokens-per-second", "2") as service:
        wait_for(lambda: len(api_servers(service)) == 2)
        shares = asyncio.run(main(service))
        assert sum(shares) == 64
        assert all(15 <= share <= 17 for share in shares), shares
        wait_for(
            lambda: (
                httpx.get(f"{service.url}/health", timeout=TIMEOUT_S).json()["open_requests"] == 0
            )
        )


def test_metrics_health_and_stored_responses_are_the_same_everywhere(tmp_path: Path) -> None:
    with serving(tmp_path, "scripted:", "--api-server-count", "3") as service:
        wait_for(lambda: len(api_servers(service)) == 3)
        owners: dict[int, int] = {}
        answers: list[dict[str, Any]] = []

        def create() -> None:
            with (
                httpx.Client(base_url=service.url, timeout=TIMEOUT_S) as client,
                client.stream(
                    "POST", "/v1/responses", json={"model": "tiny", "input": "hello"}
                ) as answer,
            ):
                owner = owner_of(answer, api_servers(service))
                answers.append(json.loads(answer.read()))
                owners[owner] = owners.get(owner, 0) + 1

        wait_for(lambda: create() or len(owners) == 3)
        for each in answers:
            path = f"{service.url}/v1/responses/{each['id']}"
            for _ in range(3):
                assert httpx.get(path, timeout=TIMEOUT_S).json()["output"] == each["output"]

        def counts() -> set[float]:
            page = page_of(service)
            done = metric(page, "engine_request_success_total", finished_reason="stop")
            posts = metric(page, "engine_http_requests_total", path="/v1/responses", method="POST")
            return {done, posts}

        # A client can have its answer before the broker has the statistics of the API server.
        wait_for(lambda: counts() == {len(answers)})
        for _ in range(6):
            assert counts() == {len(answers)}
        names = {f"api {index}" for index in range(3)}
        wait_for(lambda: names <= set(re.findall(r'process="(api \d)"', page_of(service))))
        refused = httpx.post(
            f"{service.url}/v1/responses",
            json={"model": "tiny", "input": "hello", "background": True},
            timeout=TIMEOUT_S,
        )
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "background"


def test_death_of_the_process_with_the_broker_keeps_the_engines(tmp_path: Path) -> None:
    with serving(tmp_path, "scripted:", "-dp", "2", "--api-server-count", "2") as service:
        wait_for(lambda: len(api_servers(service)) == 2)
        same = engines(service)
        before = api_servers(service)
        # A service that is not ready yet ends with the process.
        wait_for(lambda: {"api 0", "api 1"} <= set(re.findall(r'"(api \d)"', page_of(service))))
        kill_api(service)
        wait_for(lambda: all(is_gone(pid) for pid in before))
        wait_for(service.is_ready)
        assert engines(service) == same
        fields = {"model": "tiny", "prompt": "hello", "max_tokens": 20}
        answer = httpx.post(f"{service.url}/v1/completions", json=fields, timeout=TIMEOUT_S)
        assert answer.json()["choices"][0]["text"] == "hello"


def test_death_of_the_api_process_keeps_both_engines_and_their_streams(tmp_path: Path) -> None:
    path, fields = BODIES["chat"]
    flags = ("-dp", "2", "--api-key", "one", "--stream-resume-timeout", "600", *SLOW)
    with serving(tmp_path, "scripted:", *flags) as service:
        same = engines(service)
        assert len(same) == 2
        undisturbed = Reader(service, path, fields)
        undisturbed.read()
        readers = [Reader(service, path, fields) for _ in range(4)]
        for reader in readers:
            reader.read(6)
        kill_api(service)
        for reader in readers:
            wait_for(lambda reader=reader: reader.read() or reader.is_complete)
            assert reader.text() == undisturbed.text()
        assert engines(service) == same
        health = httpx.get(f"{service.url}/health", timeout=TIMEOUT_S).json()
        assert [each["restarts"] for each in health["engines"]] == [0, 0]


CALL = '<tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "some text"}]}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": "some text", "logprobs": 2, "n": 2}),
    "prompt logprobs": ("/v1/completions", {"prompt": "some text", "prompt_logprobs": 1}),
    "call": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": CALL}], "tools": TOOLS},
    ),
    "unknown call": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": CALL.replace("add", "sub")}], "tools": TOOLS},
    ),
    "required call": ("/v1/chat/completions", {**CHAT, "tools": TOOLS, "tool_choice": "required"}),
    "schema": ("/v1/chat/completions", {**CHAT, "response_format": {"type": "json_object"}}),
    "response": ("/v1/responses", {"input": "some text", "tools": []}),
    "message": ("/v1/messages", {**CHAT, "max_tokens": 20}),
    "wrong field": ("/v1/completions", {"prompt": "some text", "\ud800": "\ud801"}),
    "wrong value": ("/v1/completions", {"prompt": "some text", "max_tokens": "\ud800"}),
    "no model": ("/v1/completions", {"prompt": "some text", "model": "\ud800"}),
}


def test_statistics_of_all_routes_reach_the_shared_sinks(tmp_path: Path) -> None:
    """No server ends, and no sink fails."""
    flags = ("--api-server-count", "2", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    with serving(tmp_path, "scripted:", *flags) as service:
        wait_for(lambda: len(api_servers(service)) == 2)
        servers = api_servers(service)
        for path, fields in REQUESTS.values():
            for stream in (False, True):
                whole = {"model": "tiny", "max_tokens": 60, "stream": stream} | fields
                if path == "/v1/responses":
                    whole["max_output_tokens"] = whole.pop("max_tokens")
                for _ in range(3):  # new connections: to both servers
                    httpx.post(
                        f"{service.url}{path}",
                        content=json.dumps(whole),
                        headers={"x-request-id": b"\xe4\xff"},
                        timeout=TIMEOUT_S,
                    )
        wait_for(lambda: metric(page_of(service), "engine_tool_calls_total", tool="unknown") >= 6)
        health = httpx.get(f"{service.url}/health", timeout=TIMEOUT_S).json()
        assert [each for each in health["sinks"] if each["faults"]] == []
        assert api_servers(service) == servers


PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAGUlEQVR4nGM8IRfFQApgIkn1"
    "qIZRDUNKAwAGOgFgVinecgAAAABJRU5ErkJggg=="
)


def test_stopped_servers_leave_no_input_processor(tmp_path: Path) -> None:
    with serving(tmp_path, "demo:vision", "--api-server-count", "2") as service:
        wait_for(lambda: len(api_servers(service)) == 2)
        servers = api_servers(service)
        places = (SHARED_MEMORY, tmp_path / "tmp")
        folders = [
            each for pid in servers for place in places for each in place.glob(f"{PREFIX}{pid}-*")
        ]
        assert len(folders) == 2
        image = {"type": "image_url", "image_url": {"url": PIXEL}}
        text = {"type": "text", "text": "what is it"}
        fields = {"messages": [{"role": "user", "content": [image, text]}], "max_tokens": 2}
        for _ in range(8):  # new connections: to both servers
            url = f"{service.url}/v1/chat/completions"
            reply = httpx.post(url, json={"model": "tiny", **fields}, timeout=TIMEOUT_S)
            assert reply.status_code == 200, reply.text
    assert not any(each.exists() for each in folders)
    assert "Exception in thread" not in service.log()


def free_ports(count: int) -> int:
    """Return the first of some free ports in a row."""
    for first in range(20_000, 60_000, 7):
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def test_a_server_per_rank_and_a_supervisor(tmp_path: Path) -> None:
    first = free_ports(3)
    flags = ("-dp", "2", "-dpm", "--port", str(first))
    flags += ("--data-parallel-supervisor-port", str(first + 2))
    flags += ("--dp-supervisor-probe-interval-s", "0.2", "--uvicorn-log-level", "warning")
    urls = [f"http://127.0.0.1:{first + each}" for each in range(3)]

    def ranks() -> Any:
        try:
            answer = httpx.get(f"{urls[2]}/health", timeout=TIMEOUT_S)
        except BROKEN:
            return None
        found = answer.json()["ranks"]
        assert (answer.status_code == 200) == all(each["status"] == "ready" for each in found)
        return found if answer.status_code == 200 else None

    with serving(tmp_path, "scripted:", *flags) as service:
        assert [each["rank"] for each in wait_for(ranks)] == [0, 1]
        fields = {"model": "tiny", "prompt": "hello", "max_tokens": 20}
        for rank in range(2):
            for named in range(2):
                headers = {"X-data-parallel-rank": str(named)}
                answer = httpx.post(
                    f"{urls[rank]}/v1/completions", json=fields, headers=headers, timeout=TIMEOUT_S
                )
                assert answer.status_code == (200 if named == rank else 400)
            page = httpx.get(f"{urls[rank]}/metrics", timeout=TIMEOUT_S).text
            assert metric(page, "engine_request_success_total", engine=str(rank)) == 1
        servers = sorted(children(service.process.pid))
        assert len(servers) == 2
        os.kill(servers[0], signal.SIGKILL)
        wait_for(lambda: any(each["restarts"] for each in ranks() or ()))
        assert servers[1] in children(service.process.pid)
