"""A bad value returns a 400 that names field and limit, and never reaches the engine."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from builtin_plugins.routes.common.websocket import error_message
from builtin_plugins.servers.http.errors import describe
from core.api import InvalidRequest


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temperature": -1}, "temperature", "at least 0"),
        ({"temperature": "hot"}, "temperature", "finite number"),
        ({"temperature": True}, "temperature", "finite number"),
        ({"top_p": 1.5}, "top_p", "at most 1"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"n": 100000}, "n", "at most 64"),
        ({"n": 0}, "n", "at least 1"),
        ({"n": 1.5}, "n", "integer"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": 10**30}, "max_tokens", "64 bits"),
        ({"top_k": 10**30}, "top_k", "64 bits"),
        ({"seed": 2**70}, "seed", "64 bits"),
        ({"stop": [""]}, "stop", "empty"),
        ({"stop": [1]}, "stop", "texts"),
        ({"stop": {"a": 1}}, "stop", "list"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "at least 0"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "integers"),
        ({"logit_bias": {"5": 1000}}, "logit_bias", "at most 100"),
        ({"logit_bias": [1]}, "logit_bias", "map"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "empty"),
        (
            {"allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 4},
            "allowed_token_ids",
            "stop tokens",
        ),
        ({"ignore_eos": 1}, "ignore_eos", "true or false"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"echo": 1}, "echo", "true or false"),
        ({"priority": 2**40}, "priority", "2147483647"),
        ({"cache_salt": "s" * 300}, "cache_salt", "256"),
        ({"min_tokens": 20, "max_tokens": 10}, "min_tokens", "more than max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
        (
            {"stream_options": {"include_usage": 3}, "stream": True},
            "stream_options.include_usage",
            "true or false",
        ),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": {}}, "prompt", "text"),
        ({"prompt": ["a", ""]}, "prompt", "empty"),
        ({"prompt": [1, "a"]}, "prompt", "list"),
        ({"prompt": [True]}, "prompt", "list"),
        ({"prompt": ["a"] * 2000}, "prompt", "1024"),
        ({"prompt": ["a"] * 100, "n": 64}, "n", "1024"),
        ({"prompt": "x" * 500}, "prompt", "256"),
        ({"suffix": "s"}, "suffix", "not served"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "object"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format.json_schema.schema",
            "expected",
        ),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn", "did you mean 'json'"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            "structured_outputs",
            "exactly one",
        ),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex", "expected"),
        (
            {"structured_outputs": {"json": {"minimum": 2**64}}},
            "structured_outputs.json",
            "64 bits",
        ),
        (
            {"structured_outputs": {"structural_tag": {"a": [-(2**63) - 1]}}},
            "structured_outputs.structural_tag",
            "64 bits",
        ),
        ({"vllm_xargs": {"a": 10**30}}, "vllm_xargs[...]", ""),
        ({"guided_json": {}}, "guided_json", "`structured_outputs` with `json`"),
        ({"logits_processors": ["os.system"]}, "logits_processors", "no code"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "streamed"),
    ],
)
def test_bad_value_error_names_field_and_limit(api, fields, param, message):
    reply = api.complete(**{"prompt": "a", **fields})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert message in error["message"]
    assert api.engine.sampling == []


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b'{"prompt": "a", "temperature": NaN}', "temperature", "finite number"),
        (b'{"prompt": "a", "logit_bias": {"5": Infinity}}', "logit_bias.5", "finite number"),
        (b'{"prompt": "a", "top_p": 1e999}', "top_p", "finite number"),
        (b'{"prompt": "a"', "body", "valid JSON"),
        (b"", "body", "valid JSON"),
        (b"[1]", "body", "JSON object"),
        (b'"\xff"', "body", "valid JSON"),
        (b"[" * 100_000, "body", "nested too deeply"),
        (b'{"prompt":' * 30_000, "body", "nested too deeply"),
        (b"{}", "prompt", "missing"),
    ],
)
def test_invalid_json_body_is_rejected(api, body, param, message):
    reply = api.call(
        "POST", "/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == param
    assert message in error["message"]


def test_non_json_content_type_is_rejected(api):
    reply = api.call(
        "POST", "/v1/completions", content=b"a=b", headers={"content-type": "text/plain"}
    )
    assert reply.status_code == 415
    assert "application/json" in reply.json()["error"]["message"]


def test_unknown_field_is_listed_in_header_and_ignored(api, caplog):
    reply = api.complete("a", quantum_mode=True, **{"odd\r\nname": 1})
    assert reply.status_code == 200
    assert reply.headers["x-ignored-fields"] == "quantum_mode, odd??name"
    assert "quantum_mode" in caplog.text


@pytest.mark.parametrize(
    "names",
    [[""], ["zz", ""], [" "], [",", "\u6f22"], ["q" * 10_000], [f"q{i}" for i in range(90)]],
)
def test_unknown_field_header_escapes_any_name(api, names):
    reply = api.complete("a", **dict.fromkeys(names, 1))
    assert reply.status_code == 200
    header = reply.headers["x-ignored-fields"]
    assert re.fullmatch(r"[\x21-\x7e]+(, [\x21-\x7e]+)*", header)
    assert len(header) < 2000


def test_stream_lists_ignored_fields(api):
    assert (
        api.complete("a", quantum_mode=True, stream=True).headers["x-ignored-fields"]
        == "quantum_mode"
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("temprature", "temperature"),
        ("max_token", "max_tokens"),
        ("topp", "top_p"),
        ("promt", "prompt"),
        ("Top_P", "top_p"),
    ],
)
def test_misspelt_field_error_suggests_correct_name(api, name, meant):
    error = api.complete("a", **{name: 1}).json()["error"]
    assert error["param"] == name
    assert f"did you mean {meant!r}?" in error["message"]


def test_strict_fields_rejects_unknown_fields(make_api):
    reply = make_api(strict_fields=True).complete("a", quantum_mode=True)
    assert reply.status_code == 400
    assert "--strict-fields" in reply.json()["error"]["message"]


def test_fields_without_effect_are_accepted(api):
    reply = api.chat("a", user="u", store=False, metadata={"k": "v"}, parallel_tool_calls=True)
    assert reply.status_code == 200
    assert "x-ignored-fields" not in reply.headers


def test_unknown_model_returns_404(api):
    reply = api.complete("a", model="other")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"
    assert "echo" in reply.json()["error"]["message"]


def test_stream_error_precedes_response_headers(api):
    reply = api.complete("x" * 500, stream=True)
    assert reply.status_code == 400
    assert json.loads(reply.text)["error"]["param"] == "prompt"


def test_one_bad_prompt_rejects_the_request(api):
    reply = api.complete(["fine", "x" * 500])
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt")


def test_too_many_unknown_fields_are_rejected_quickly(api):
    reply = api.complete("a", **{f"unknown_{i}": 1 for i in range(5000)})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "body")
    assert "up to 100" in reply.json()["error"]["message"]


def test_chat_prompt_too_long_error_names_messages(api):
    error = api.chat("x" * 500).json()["error"]
    assert error["param"] == "messages"
    assert error["message"].startswith("messages: ")


def test_detokenize_rejects_too_many_tokens(api):
    reply = api.call("POST", "/detokenize", json={"tokens": [65] * 3000})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tokens")


def test_disconnect_during_body_is_not_logged_as_error(api, caplog):
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "headers": [],
        "query_string": b"",
    }
    asyncio.run(api.server.app(scope, receive, send))
    assert sent[0]["status"] == 499
    assert not caplog.records


@pytest.mark.parametrize("method", ["complete", "chat"])
def test_generate_on_pooling_model_names_model_field(api, monkeypatch, method):
    async def refuse(*given, **options):
        raise InvalidRequest("sampling_params", "this engine makes no tokens.")
        yield

    monkeypatch.setattr(api.engine, "generate", refuse)
    error = getattr(api, method)("a").json()["error"]
    assert (error["param"], error["message"]) == ("model", "model: this engine makes no tokens.")


def test_error_repeats_only_the_beginning_of_a_client_text():
    answer = describe(InvalidRequest("x" * 30_000, "y" * 30_000))
    for text in (answer.body(), error_message(answer)):  # over HTTP, and over a WebSocket
        error = json.loads(text)["error"]
        assert len(error["message"]) < 1500
        assert len(error["param"]) < 300
