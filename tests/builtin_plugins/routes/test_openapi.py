"""`/openapi.json` describes all routes, from the structs that parse requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import APIRouter
from jsonschema import Draft202012Validator

from builtin_plugins.servers.http.app import EngineApp

PROBES = {"/livez", "/readyz", "/health", "/ping"}
HELLO = {"role": "user", "content": "hello"}


@pytest.fixture
def described(api: Any) -> Any:
    reply = api.get("/openapi.json")
    assert reply.status_code == 200
    return reply.json()


def everything_in(value: Any) -> Iterator[dict[str, Any]]:
    """Return every object in a JSON value."""
    if isinstance(value, dict):
        yield value
    for inner in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from everything_in(inner)


def test_document_is_valid_openapi_3_1(described: Any) -> None:
    assert described["openapi"].startswith("3.1.")
    assert {"title", "version"} <= described["info"].keys()
    operations = [operation for path in described["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    assert all(operation["responses"] for operation in operations)
    for path, methods in described["paths"].items():
        assert path.startswith("/")
        assert ":" not in path, "a converter belongs to Starlette"
        for method, operation in methods.items():
            assert method in ("get", "post", "delete")
            declared = {
                each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"
            }
            assert declared == {part[1:-1] for part in path.split("/") if part.startswith("{")}


def test_every_schema_is_valid_and_references_resolve(described: Any) -> None:
    schemas = described["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    references = [
        each["$ref"] for each in everything_in(described) if isinstance(each.get("$ref"), str)
    ]
    assert references
    assert {
        reference.removeprefix("#/components/schemas/") for reference in references
    } <= schemas.keys()


def test_document_lists_exactly_the_routes(api: Any, described: Any) -> None:
    served = {
        (route.path.replace(":path", ""), method.lower())
        for route in api.server.app.routes
        for method in getattr(route, "methods", set()) - {"HEAD"}  # WebSockets have none
        if route.path != "/openapi.json"
    }
    assert served == {
        (path, method) for path, methods in described["paths"].items() for method in methods
    }


GOOD: list[tuple[str, dict[str, Any]]] = [
    ("completions", {"prompt": "a"}),
    (
        "completions",
        {"prompt": ["a", "b"], "n": 2, "stop": "x", "logit_bias": {"5": 1}, "best_of": 3},
    ),
    (
        "completions",
        {"prompt": [1, 2], "temperature": None, "top_k": -1, "logprobs": 3, "seed": 2**63 - 1},
    ),
    (
        "completions",
        {"prompt": "a", "response_format": {"type": "json_object"}, "user": "u", "stream": True},
    ),
    (
        "completions",
        {"prompt": "a", "structured_outputs": {"regex": "a+", "json": None}, "stop": ["x", "y"]},
    ),
    (
        "chat/completions",
        {"messages": [HELLO], "logprobs": True, "top_logprobs": 2, "max_completion_tokens": 4},
    ),
    (
        "chat/completions",
        {"messages": [HELLO], "stream_options": {"include_usage": True}, "stream": True},
    ),
    (
        "messages",
        {
            "messages": [HELLO],
            "max_tokens": 5,
            "system": [{"type": "text", "text": "a"}],
            "top_k": 3,
        },
    ),
    (
        "messages",
        {"messages": [HELLO], "max_tokens": 5, "thinking": {"type": "adaptive"}, "mcp_servers": []},
    ),
    ("messages/count_tokens", {"messages": [HELLO]}),
    (
        "responses",
        {"input": "hello", "store": False, "include": ["reasoning.encrypted_content"], "seed": 1},
    ),
    (
        "responses",
        {
            "input": [HELLO],
            "text": {"verbosity": "low"},
            "reasoning": {"effort": "low", "summary": "auto"},
        },
    ),
    ("responses/input_tokens", {"input": "hello"}),
]
BAD: list[tuple[str, dict[str, Any]]] = [
    ("completions", {}),
    ("completions", {"prompt": ""}),
    ("completions", {"prompt": []}),
    ("completions", {"prompt": [[1], {}]}),
    ("chat/completions", {"messages": []}),
    ("completions", {"prompt": 5}),
    ("completions", {"prompt": "a", "temperature": -1}),
    ("completions", {"prompt": "a", "temperature": "hot"}),
    ("completions", {"prompt": "a", "top_p": 0}),
    ("completions", {"prompt": "a", "n": 100}),
    ("completions", {"prompt": "a", "n": 1.5}),
    ("completions", {"prompt": "a", "stop": ["x"] * 65}),
    ("completions", {"prompt": "a", "stop_token_ids": [-1]}),
    ("completions", {"prompt": "a", "logit_bias": {"5": 1000}}),
    ("completions", {"prompt": "a", "suffix": "b"}),
    ("completions", {"prompt": "a", "cache_salt": "s" * 257}),
    ("completions", {"prompt": "a", "structured_outputs": {"jsn": {}}}),
    ("completions", {"prompt": "a", "response_format": {"type": "yaml"}}),
    ("chat/completions", {"messages": "hello"}),
    ("chat/completions", {"messages": [HELLO], "thinking_token_budget": -1}),
    ("messages", {"messages": [HELLO]}),
    ("messages", {"messages": [HELLO], "max_tokens": 0}),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "video"}]}], "max_tokens": 5}),
    ("messages", {"messages": [HELLO], "max_tokens": 5, "top_p": 0}),
    ("messages", {"messages": [HELLO], "max_tokens": 5, "mcp_servers": [{"url": "a"}]}),
    ("responses", {"input": 5}),
    ("responses", {"input": "a", "top_logprobs": 21}),
    ("responses", {"input": "a", "truncation": "much"}),
    ("responses", {"input": "a", "conversation": "c"}),
]


def test_equal_titles_get_separate_schemas(described: Any) -> None:
    paths = ("/v1/chat/completions", "/v2/chat")
    bodies = [
        described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        for path in paths
    ]
    assert bodies[0] != bodies[1]
    found = [described["components"]["schemas"][body["$ref"].rpartition("/")[2]] for body in bodies]
    assert ["n" in schema["properties"] for schema in found] == [True, False]


@pytest.mark.parametrize(
    ("path", "body", "good"), [(*case, True) for case in GOOD] + [(*case, False) for case in BAD]
)
def test_schema_agrees_with_server(
    api: Any, described: Any, path: str, body: dict[str, Any], good: bool
) -> None:
    reference = described["paths"][f"/v1/{path}"]["post"]["requestBody"]["content"][
        "application/json"
    ]["schema"]
    schema = described["components"]["schemas"][reference["$ref"].rpartition("/")[2]]
    assert Draft202012Validator(schema).is_valid(body) == good
    assert (api.call("POST", f"/v1/{path}", json=body).status_code == 200) == good


def test_errors_match_documented_form(api: Any, described: Any) -> None:
    schema = described["components"]["schemas"]["Error"]
    for reply in (api.complete(temperature=-1), api.get("/nowhere"), api.complete(model="other")):
        Draft202012Validator(schema).validate(reply.json())


def test_protocol_errors_match_documented_form(api: Any, described: Any) -> None:
    for path in ("/v1/messages", "/v2/chat", "/v1/responses"):
        reply = api.call("POST", path, json={})
        content_schema = described["paths"][path]["post"]["responses"][str(reply.status_code)][
            "content"
        ]["application/json"]
        name = content_schema["schema"]["$ref"].rpartition("/")[2]
        assert name == ("PlainError" if path == "/v2/chat" else "Error")
        Draft202012Validator(described["components"]["schemas"][name]).validate(reply.json())


def test_every_status_of_a_route_is_documented(api: Any, described: Any) -> None:
    complete = described["paths"]["/v1/completions"]["post"]["responses"]
    assert {
        "200",
        "400",
        "404",
        "408",
        "413",
        "415",
        "429",
        "500",
        "503",
        "504",
        "default",
    } == complete.keys()
    assert complete["200"]["content"].keys() == {"application/json", "text/event-stream"}
    for path, methods in described["paths"].items():
        for operation in methods.values():
            assert ("404" in operation["responses"]) >= ("{" in path)
    assert "401" not in json.dumps(described["paths"])


def test_query_parameters_are_documented(described: Any) -> None:
    one = described["paths"]["/v1/responses/{response_id}"]
    assert {each["name"] for each in one["get"]["parameters"]} == {
        "response_id",
        "stream",
        "starting_after",
    }
    assert {each["name"] for each in one["delete"]["parameters"]} == {"response_id"}


def test_method_not_allowed_lists_methods(api: Any) -> None:
    reply = api.call("PUT", "/v1/responses/resp_1")
    assert (reply.status_code, reply.headers["allow"]) == (405, "DELETE, GET, HEAD")


def test_strict_fields_set_additional_properties(make_api: Callable[..., Any]) -> None:
    schema = (
        make_api(strict_fields=True)
        .get("/openapi.json")
        .json()["components"]["schemas"]["CompletionFields"]
    )
    assert not Draft202012Validator(schema).is_valid({"prompt": "a", "quantum_mode": True})


def test_document_needs_key_and_declares_security(make_api: Callable[..., Any]) -> None:
    api = make_api(api_key=["one"])
    assert api.get("/openapi.json").status_code == 401
    found = api.get("/openapi.json", headers={"Authorization": "Bearer one"}).json()
    assert found["security"] == [{"key": []}, {"header": []}]
    free = {
        path
        for path, methods in found["paths"].items()
        for each in methods.values()
        if each.get("security") == []
    }
    assert free == PROBES
    needs = {
        path
        for path, methods in found["paths"].items()
        for each in methods.values()
        if "401" in each["responses"]
    }
    assert needs == found["paths"].keys() - PROBES


def test_document_can_be_disabled(make_api: Callable[..., Any]) -> None:
    assert make_api(disable_fastapi_docs=True).get("/openapi.json").status_code == 404


def test_fastapi_routes_describe_themselves(api: Any) -> None:
    router = APIRouter()

    @router.get("/double/{number}")
    def double(number: int) -> dict[str, int]:
        return {"twice": 2 * number}

    class Group:
        def routes(self) -> list[Any]:
            return list(router.routes)

    api.server.app = EngineApp({"theirs": Group()}, {})
    parameter = json.loads(api.get("/openapi.json").text)["paths"]["/double/{number}"]["get"][
        "parameters"
    ][0]
    assert (parameter["name"], parameter["schema"]["type"]) == ("number", "integer")


@pytest.mark.parametrize(("root_path", "servers"), [("", None), ("/llm", [{"url": "/llm"}])])
def test_document_has_root_path_of_proxy(
    make_api: Callable[..., Any], root_path: str, servers: Any
) -> None:
    assert make_api(root_path=root_path).get("/openapi.json").json().get("servers") == servers
