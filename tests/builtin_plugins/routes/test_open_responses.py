"""The Open Responses compliance suite, and further promises of its WebSocket mode.

The checks are those of https://github.com/openresponses/openresponses, written for Python.
`open_responses_cases.json` lists the suite's cases; a test here covers each of them. With a newer
commit of the suite, `grep -A1 '^    id: ' src/lib/compliance-tests.ts` gives the new list.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import pytest
import uvicorn

from builtin_plugins.routes.responses.routes import ResponsesRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM
from tests.served import served
from tests.timeouts import TIMEOUT_S

websockets = pytest.importorskip("websockets.sync.client", reason="needs websockets")
closures = pytest.importorskip("websockets.exceptions", reason="needs websockets")

Test = TypeVar("Test", bound=Callable[..., None])
SUITE: Final = json.loads(Path(__file__).with_name("open_responses_cases.json").read_text())
COVERED: Final[list[str]] = []
"""Cases of the suite with a test in this file."""


def covers(*cases: str) -> Callable[[Test], Test]:
    """Note that a test covers cases of the suite."""

    def note(test: Test) -> Test:
        COVERED.extend(cases)
        return test

    return note


Json = dict[str, Any]
Turn = tuple[list[Json], Json]
"""Events of one response, and the terminal one."""

RESPONSE: Final[Mapping[str, tuple[type, ...]]] = {
    "id": (str,),
    "object": (str,),
    "created_at": (int,),
    "completed_at": (int, type(None)),
    "status": (str,),
    "incomplete_details": (dict, type(None)),
    "model": (str,),
    "previous_response_id": (str, type(None)),
    "instructions": (str, list, type(None)),
    "output": (list,),
    "error": (dict, type(None)),
    "tools": (list,),
    "tool_choice": (str, dict),
    "truncation": (str,),
    "parallel_tool_calls": (bool,),
    "text": (dict,),
    "top_p": (int, float),
    "presence_penalty": (int, float),
    "frequency_penalty": (int, float),
    "top_logprobs": (int,),
    "temperature": (int, float),
    "reasoning": (dict, type(None)),
    "usage": (dict, type(None)),
    "max_output_tokens": (int, type(None)),
    "max_tool_calls": (int, type(None)),
    "store": (bool,),
    "background": (bool,),
    "service_tier": (str,),
    "metadata": (dict,),
    "safety_identifier": (str, type(None)),
    "prompt_cache_key": (str, type(None)),
}
"""Types of the required fields of a response."""
EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "response.created": ("response",),
    "response.in_progress": ("response",),
    "response.completed": ("response",),
    "response.failed": ("response",),
    "response.output_item.added": ("output_index", "item"),
    "response.output_item.done": ("output_index", "item"),
    "response.content_part.added": ("item_id", "output_index", "content_index", "part"),
    "response.content_part.done": ("item_id", "output_index", "content_index", "part"),
    "response.output_text.delta": ("item_id", "output_index", "content_index", "delta", "logprobs"),
    "response.output_text.done": ("item_id", "output_index", "content_index", "text", "logprobs"),
    "response.function_call_arguments.delta": ("item_id", "output_index", "delta"),
    "response.function_call_arguments.done": ("item_id", "output_index", "arguments"),
}
"""Required fields of the events of a stream."""
ITEMS: Final[Mapping[str, tuple[str, ...]]] = {
    "message": ("id", "status", "role", "content"),
    "function_call": ("id", "call_id", "name", "arguments", "status"),
    "reasoning": ("id", "summary"),
    "compaction": ("id", "encrypted_content"),
}
"""Required fields of the items of an output."""
USAGE: Final = {
    "input_tokens": int,
    "output_tokens": int,
    "total_tokens": int,
    "input_tokens_details": dict,
    "output_tokens_details": dict,
}
"""Types of the required fields of a usage."""
ENDS: Final = ("response.completed", "response.failed", "response.incomplete", "error")
TOOL: Final = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}
CALL: Final = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"location": "San Francisco, CA"}}\n'
    "</tool_call>"
)
WEATHER: Final = "What's the weather like in San Francisco?"


class Server:
    """One server, as the suite's runner uses it."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self.http = httpx.Client(base_url=base_url, timeout=TIMEOUT_S)

    def post(self, path: str, body: Json) -> httpx.Response:
        return self.http.post(path, json=body)

    def connect(self, **options: Any) -> Any:
        url = self.base_url.replace("http", "ws", 1).rstrip("/") + "/responses"
        return websockets.connect(url, open_timeout=TIMEOUT_S, **options)

    def turn(self, socket: Any, **fields: Any) -> Turn:
        """Return the events of one `response.create` message, and the last of them."""
        socket.send(json.dumps({"type": "response.create", "model": "scripted:", **fields}))
        events: list[Json] = []
        while not events or events[-1]["type"] not in ENDS:
            events.append(json.loads(socket.recv(TIMEOUT_S)))
        return events, events[-1]


@contextmanager
def listening(engine: AsyncLLM) -> Iterator[str]:
    """Yield the URL of a server in a thread of this process, which ends with the block."""
    app = HttpServer(engine, engine.config, [ResponsesRoutes(engine, engine.config)]).app
    runner = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=runner.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/"
        finally:
            runner.should_exit = True
            thread.join(TIMEOUT_S)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    answers: Path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    lines = [{"prompt": WEATHER, "answer": CALL}, "Hello there, friend."]
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines))
    engine = AsyncLLM(
        "scripted:",
        scripted_answers=str(answers),
        tool_call_parser="hermes",
        enable_auto_tool_choice=True,
        responses_image_placeholder="[an image that you cannot see]",
        disable_frontend_multiprocessing=True,
        structured_outputs_config={"warm_up": False},
        max_model_len=2048,
        kv_cache_memory_bytes=1 << 26,
        num_threads=1,
        log_level="error",
    )
    try:
        with listening(engine) as url:
            found = Server(url)
            with found.http:
                yield found
    finally:
        engine.shutdown()


def message(role: str, content: Any, **more: Any) -> Json:
    return {"type": "message", "role": role, "content": content, **more}


def check_response(response: Json) -> None:
    wrong = {
        name: response.get(name, "missing")
        for name, kinds in RESPONSE.items()
        if name not in response or type(response[name]) not in kinds
    }
    assert wrong == {}
    assert response["object"] == "response"
    assert response["output"]
    assert response["status"] == "completed"
    check_output(response)


def check_output(response: Json) -> None:
    """Check the items and the usage of a response, or of a compaction."""
    for item in response["output"]:
        assert set(ITEMS[item["type"]]) <= set(item), item
        if item["type"] == "message" and item["role"] == "assistant":
            assert item.get("phase", "final_answer") in ("commentary", "final_answer")
            for part in item["content"]:
                assert type(part["text"]) is str
                assert type(part["annotations"]) is list
    usage = response["usage"]
    assert {name: type(usage.get(name)) for name in USAGE} == USAGE
    assert type(usage["input_tokens_details"]["cached_tokens"]) is int
    assert type(usage["output_tokens_details"]["reasoning_tokens"]) is int


def check_events(events: list[Json]) -> Json:
    """Check the events of a stream; return the completed response."""
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        assert set(EVENTS[event["type"]]) <= set(event), event
    assert events[-1]["type"] == "response.completed"
    response: Json = events[-1]["response"]
    check_response(response)
    return response


HISTORIES: Final[Mapping[str, list[Json]]] = {
    "basic-response": [message("user", "Say hello in exactly 3 words.")],
    "assistant-phase": [
        message("assistant", "I should answer with the saved number.", phase="commentary"),
        message("assistant", "The number is four.", phase="final_answer"),
        message("user", "Repeat only the number."),
    ],
    "system-prompt": [
        message("system", "You are a pirate. Always respond in pirate speak."),
        message("user", "Say hello."),
    ],
    "image-input": [
        message(
            "user",
            [
                {"type": "input_text", "text": "What do you see in this image?"},
                {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
            ],
        )
    ],
    "multi-turn": [
        message("user", "My name is Alice."),
        message("assistant", "Hello Alice! How can I help you today?"),
        message("user", "What is my name?"),
    ],
}


def test_each_case_of_the_suite_has_a_test() -> None:
    assert len(SUITE["cases"]) == 17
    assert sorted(COVERED) == sorted(SUITE["cases"])


@covers(*HISTORIES)
@pytest.mark.parametrize("name", HISTORIES)
def test_history_is_answered_with_a_response_of_the_schema(server: Server, name: str) -> None:
    reply = server.post("responses", {"model": "scripted:", "input": HISTORIES[name]})
    assert reply.status_code == 200, reply.text
    check_response(reply.json())


@covers("response-output-phase-schema")
def test_phases_of_messages_are_returned_as_they_were_sent(server: Server) -> None:
    """The suite checks its own schema only; here phases stay in a conversation, too."""
    said = [message("assistant", text, phase=text) for text in ("commentary", "final_answer")]
    response = server.post(
        "responses",
        {
            "model": "scripted:",
            "input": [message("user", "Go on."), *said, message("user", "And?")],
        },
    ).json()
    check_response(response)
    given = server.http.get(f"responses/{response['id']}/input_items", params={"order": "asc"})
    phases = [item.get("phase") for item in given.json()["data"]]
    assert phases == [None, "commentary", "final_answer", None]
    parts = [{"type": "output_text", "text": "Four.", "annotations": []}]
    fields = {"type": "message", "role": "assistant", "status": "completed", "content": parts}
    labelled = [{**fields, "id": phase, "phase": phase} for phase in ("commentary", "final_answer")]
    check_response({**response, "output": labelled})
    with pytest.raises(AssertionError):
        check_response({**response, "output": [{**fields, "id": "a", "phase": "other"}]})


@covers("tool-calling")
def test_tool_is_called(server: Server) -> None:
    body = {"model": "scripted:", "input": [message("user", WEATHER)], "tools": [TOOL]}
    response = server.post("responses", body).json()
    check_response(response)
    assert [item["type"] for item in response["output"]] == ["function_call"]


@covers("streaming-response")
@pytest.mark.parametrize("content", ["Count from 1 to 5.", WEATHER])
def test_stream_has_events_of_the_schema(server: Server, content: str) -> None:
    body = {"model": "scripted:", "input": [message("user", content)], "tools": [TOOL]}
    text = server.post("responses", {**body, "stream": True}).text
    events = [
        json.loads(line.removeprefix("data: "))
        for line in text.splitlines()
        if line.startswith("data: {")
    ]
    check_events(events)


COMPACT: Final[Json] = {
    "model": "scripted:",
    "prompt_cache_key": "openresponses-compact-test",
    "input": [
        message("user", "We agreed to launch on Tuesday and notify support first."),
        message("assistant", "Understood. The launch is Tuesday, with support notified."),
    ],
}


@covers("compact-response")
def test_compaction_returns_the_users_messages_and_a_summary(server: Server) -> None:
    reply = server.post("responses/compact", COMPACT)
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert body["object"] == "response.compaction"
    assert body["id"].startswith("resp_")
    assert type(body["created_at"]) is int
    assert body["usage"]["output_tokens"] > 0
    assert [item["type"] for item in body["output"]] == ["message", "compaction"]
    assert body["output"][0]["content"][0]["text"].startswith("We agreed to launch on Tuesday")
    assert body["output"][1]["encrypted_content"]
    check_output(body)


@covers("compact-missing-model")
def test_compaction_needs_a_model(server: Server) -> None:
    reply = server.post("responses/compact", {"input": COMPACT["input"]})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "model"


@covers("websocket-response")
def test_websocket_streams_a_stored_response(server: Server) -> None:
    with server.connect() as socket:
        events, _ = server.turn(socket, input=[message("user", "Count from 1 to 3.")])
    stored = server.http.get(f"responses/{check_events(events)['id']}")
    check_response(stored.json())


@covers("websocket-sequential-responses")
def test_websocket_answers_one_message_after_the_other(server: Server) -> None:
    with server.connect() as socket:
        ids = {
            check_events(server.turn(socket, store=False, input=text)[0])["id"]
            for text in ("Reply with exactly: first", "Reply with exactly: second")
        }
    assert len(ids) == 2


@covers("websocket-continuation", "websocket-reconnect-store-false-recovery")
def test_websocket_continues_a_response_that_is_not_stored(server: Server) -> None:
    with server.connect() as socket:
        first = server.turn(socket, store=False, input="Remember the code word: cobalt.")[1]
        continued = first["response"]["id"]
        events, _ = server.turn(
            socket, store=False, previous_response_id=continued, input="What is the code word?"
        )
        response = check_events(events)
        assert response["previous_response_id"] == continued
        assert response["usage"]["input_tokens"] > first["response"]["usage"]["input_tokens"]
    with server.connect() as socket:  # it is lost with the connection
        error = server.turn(socket, store=False, previous_response_id=continued, input="And now?")
        assert_not_found(error)
        check_events(server.turn(socket, store=False, input="Start again.")[0])


def assert_not_found(turn: Turn) -> None:
    error = turn[1]
    assert error["type"] == "error"
    assert error["status"] == 404
    assert error["error"]["code"] == "previous_response_not_found"
    assert error["error"]["message"]


@covers("websocket-previous-response-not-found")
def test_websocket_refuses_an_unknown_response(server: Server) -> None:
    with server.connect() as socket:
        assert_not_found(
            server.turn(socket, store=False, previous_response_id="resp_missing", input="Hi.")
        )


@covers("websocket-failed-continuation-evicts-cache")
def test_failed_continuation_evicts_the_response_it_continued(server: Server) -> None:
    with server.connect() as socket:
        first = server.turn(socket, store=False, input="Remember the code word: ember.")[1]
        continued = first["response"]["id"]
        output = {"type": "function_call_output", "call_id": "call_missing", "output": "None."}
        failed = server.turn(socket, store=False, previous_response_id=continued, input=[output])[1]
        assert failed["type"] == "error"
        assert failed["error"]["param"] == "input[0].call_id"
        assert_not_found(
            server.turn(socket, store=False, previous_response_id=continued, input="Again.")
        )


@covers("websocket-compact-new-chain")
def test_websocket_continues_from_a_compaction(server: Server) -> None:
    output = server.post("responses/compact", COMPACT).json()["output"]
    with server.connect() as socket:
        events, _ = server.turn(
            socket, store=False, input=[*output, message("user", "Continue from here.")], tools=[]
        )
    check_events(events)


def test_stored_response_is_continued_on_another_connection(server: Server) -> None:
    with server.connect() as socket:
        stored = server.turn(socket, input="Remember the code word: iron.")[1]["response"]["id"]
    with server.connect() as socket:
        events, _ = server.turn(socket, previous_response_id=stored, input="What is it?")
        assert check_events(events)["previous_response_id"] == stored


WRONG: Final[Mapping[str, Callable[[], str]]] = {
    "body": lambda: "{",
    "type": lambda: json.dumps({"type": "response.cancel"}),
    "background": lambda: json.dumps({"type": "response.create", "background": True}),
    "generate": lambda: json.dumps({"type": "response.create", "generate": False}),
    "top_p": lambda: json.dumps({"type": "response.create", "input": "a", "top_p": 9}),
}


@pytest.mark.parametrize("param", WRONG)
def test_wrong_message_is_an_error_and_the_connection_stays(server: Server, param: str) -> None:
    with server.connect() as socket:
        socket.send(WRONG[param]())
        error = json.loads(socket.recv(TIMEOUT_S))
        assert (error["type"], error["status"]) == ("error", 400)
        assert error["error"]["param"] == param
        check_events(server.turn(socket, store=False, input="Hello.")[0])


def test_pages_of_other_origins_cannot_connect(server: Server) -> None:
    with pytest.raises(Exception, match="403"), server.connect(origin="http://elsewhere.example"):
        pass
    host = server.base_url.removesuffix("/v1/")
    with server.connect(origin=host) as socket:
        check_events(server.turn(socket, store=False, input="Hello.")[0])


@pytest.mark.slow
def test_idle_connection_is_closed_when_the_server_stops() -> None:
    with served("scripted:") as client:
        found = Server(str(client.base_url))
        socket = found.connect().__enter__()
        check_events(found.turn(socket, store=False, input="Hello.")[0])
    # the server has ended with 0 by now
    with found.http, socket, pytest.raises(closures.ConnectionClosed) as closed:
        socket.recv(TIMEOUT_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012
