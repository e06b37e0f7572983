"""Forced calls: odd tool schemas are best effort unless the tool is strict."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from builtin_plugins.grammar_backends.api import CompileBudget
from builtin_plugins.routes.common.call_check import UNHELD_HEADER, CallCheck
from builtin_plugins.routes.common.tool_schemas import enforced_tools
from core.api import InvalidRequest

DISTINCT = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
}
BRANCHES = [
    {"type": "object", "properties": {"t": {"const": name}}, "required": ["t"]}
    for name in ("a", "b")
]
HELD = {
    "discriminator": {
        "type": "object",
        "properties": {"p": {"oneOf": BRANCHES, "discriminator": {"propertyName": "t"}}},
    },
    "word boundary": {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": r"\bfoo\b"}},
    },
    "not": {"type": "object", "properties": {"a": {"not": {"type": "null"}}}},
    "required undeclared": {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["b"],
    },
    "root type list": {"type": ["object", "null"], "properties": {}},
}
EQUAL = '[{"name": "f", "arguments": {"a": ["x", "x"]}}]'
DIFFERENT = '[{"name": "f", "arguments": {"a": ["x", "y"]}}]'
UNHELD = "x-unheld-constraints"
CHOICES = ["required", {"type": "function", "function": {"name": "f"}}]
PATH = "tools.0.function.parameters.properties.a.uniqueItems"


def tool(parameters: Any, name: str = "f", **fields: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": parameters, **fields},
    }


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_keyword_that_cannot_be_held_is_left_out_and_named_in_a_header(api, choice, stream):
    reply = api.chat("x", tools=[tool(DISTINCT)], tool_choice=choice, stream=stream)
    assert reply.status_code == 200
    assert PATH in reply.headers["x-ignored-fields"]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_strict_tool_that_cannot_be_held_is_rejected_by_keyword(api, choice):
    reply = api.chat("x", tools=[tool(DISTINCT, strict=True)], tool_choice=choice)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "tools[0].function.parameters")
    assert "uniqueItems at /properties/a" in error["message"]


def test_odd_tool_does_not_affect_calls_of_another(api):
    choice = {"type": "function", "function": {"name": "g"}}
    odd = tool(DISTINCT, strict=True)
    plain = tool({"type": "object", "properties": {}}, "g")
    reply = api.chat("x", tools=[odd, plain], tool_choice=choice)
    assert reply.status_code == 200
    assert "x-ignored-fields" not in reply.headers


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", HELD)
def test_schemas_of_real_tools_are_held_whole(name: str, strict: bool) -> None:
    tools, left_out = enforced_tools([tool(HELD[name], strict=strict)], "required")
    assert left_out == ()
    assert tools[0]["function"]["parameters"] == {**HELD[name], "type": "object"}


def test_other_keywords_of_an_odd_schema_stay() -> None:
    schema = {**DISTINCT, "required": ["a"], "additionalProperties": False}
    (held,), _ = enforced_tools([tool(schema)], "required")
    assert held["function"]["parameters"] == {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "string"}}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert "uniqueItems" in str(schema), "the client's tool is not changed: the prompt shows it"


def test_schema_that_allows_nothing_becomes_any_object() -> None:
    (held,), left_out = enforced_tools([tool({"required": ["a"], "not": {}})], "required")
    assert held["function"]["parameters"]["type"] == "object"
    assert left_out


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ({"count": 3}, "over 3 compilations"),
        ({"cpu_s": 1e-9}, "compile for over 1e-09 s"),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_schemas_beyond_the_budget_of_a_request_are_refused(budget, expected, strict) -> None:
    tools = [tool({"type": "object"}, f"f{i}", strict=strict) for i in range(4)]
    with pytest.raises(InvalidRequest, match=f"tools: got schemas that .*{expected}"):
        enforced_tools(tools, "required", CompileBudget(**budget))
    one = {"type": "function", "function": {"name": "f0"}}
    found, _ = enforced_tools(tools, one, CompileBudget(count=3))
    assert [each["function"]["name"] for each in found] == ["f0"]


def test_one_slow_schema_is_refused_within_the_budget() -> None:
    slow = {"properties": {"a": {"enum": [{"a": i} for i in range(12_000)]}}}
    with pytest.raises(InvalidRequest, match=r"tools: got schemas that compile for over 0\.1 s"):
        enforced_tools([tool(slow)], "required", CompileBudget(cpu_s=0.1))


def test_full_list_of_tools_with_many_odd_keywords_is_one_refused_request(api) -> None:
    """128 tools, each compiled once per odd keyword."""
    odd = {f"a{i}": DISTINCT["properties"]["a"] for i in range(9)}
    tools = [tool({"type": "object", "properties": odd}, f"f{i}") for i in range(128)]
    reply = api.chat("x", tools=tools, tool_choice="required")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools")
    assert api.chat("x", tools=tools[:8], tool_choice="required").status_code == 200


def test_root_of_another_type_is_rejected(api) -> None:
    reply = api.chat("x", tools=[tool({"type": ["array", "null"]})], tool_choice="required")
    assert reply.status_code == 400


def post(api: Any, protocol: str, text: str, schema: Any, *, stream: bool = False) -> Any:
    """Force a call of a tool that is not strict; the engine answers with the text."""
    body = {"max_tokens": 200, "stream": stream}
    function = {"name": "f", "parameters": schema}
    if protocol == "chat/completions":
        return api.chat(text, tools=[tool(schema)], tool_choice="required", **body)
    messages = {"messages": [{"role": "user", "content": text}]}
    if protocol == "responses":
        del body["max_tokens"]
        messages = {"input": text}
        more = {"tools": [{"type": "function", "strict": False, **function}]}
        more |= {"tool_choice": "required"}
    elif protocol == "messages":
        more = {"tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "any"}}
    else:
        more = {"tools": [{"type": "function", "function": function}], "tool_choice": "REQUIRED"}
    path = f"/v2/{protocol}" if protocol == "chat" else f"/v1/{protocol}"
    return api.call("POST", path, json={"model": "echo", **body, **messages, **more})


@pytest.mark.parametrize("protocol", ["chat/completions", "responses", "messages", "chat"])
def test_whole_answer_names_the_constraints_that_it_breaks(api, protocol):
    breaking = post(api, protocol, EQUAL, DISTINCT)
    assert (breaking.status_code, breaking.headers[UNHELD]) == (200, PATH)
    assert post(api, protocol, DIFFERENT, DISTINCT).headers[UNHELD] == "none"


def test_streams_and_calls_that_are_held_whole_are_not_checked(api):
    assert UNHELD not in post(api, "chat/completions", EQUAL, DISTINCT, stream=True).headers
    assert UNHELD not in post(api, "chat/completions", EQUAL, HELD["not"]).headers


@pytest.mark.parametrize(
    ("calls", "header"),
    [
        ([("f", '{"a": ["x", "x"]}')], PATH),
        ([("f", '{"a": ["x"]}'), ("f", '{"a": ["x", "x"]}')], PATH),
        ([("f", '{"a": ["x"]}'), ("other", "{}")], "none"),
        ([("f", '{"a": [' + '"x", ' * 20_000 + '"y"]}')], "unchecked"),
        ([("f", '{"a": ["x"]}')] * 9, "unchecked"),
        ([], "none"),
    ],
    ids=["broken", "second", "fits", "large", "many", "no call"],
)
def test_every_call_of_an_answer_is_checked_up_to_a_limit(calls, header):
    check = CallCheck([tool(DISTINCT)])
    for name, arguments in calls:
        check.add(name, arguments)
    asyncio.run(check.run())
    assert check.headers == {UNHELD_HEADER: header}
