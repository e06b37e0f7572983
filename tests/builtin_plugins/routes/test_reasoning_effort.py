"""Reasoning effort and switches reach the chat template, or are named, in every protocol."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from builtin_plugins.chat_renderers.jinja.renderer import JinjaRenderer
from builtin_plugins.output_parsers.reasoning.think import HY_V3, MINIMAX_M3, QWEN3
from builtin_plugins.routes.common.conversation import Conversation
from builtin_plugins.routes.common.thinking import ThinkingSettings
from core.api import ConfigError, InvalidRequest
from core.config import EngineConfig

HEADER = "X-Ignored-Fields"
TEXTS = "{% for m in messages %}{{ m.content }}{% endfor %}"
SWITCHED = TEXTS + "{{ enable_thinking is defined and not enable_thinking }}"
EFFORTS = TEXTS + "{{ reasoning_effort }}{% if reasoning_effort == 'deep' %}!{% endif %}"
USER = [{"role": "user", "content": "hi"}]


def renderer(template: str, **options: Any) -> JinjaRenderer:
    tokenizer: Any = SimpleNamespace(chat_template=template, eos_token_id=None, special_ids=())
    source: Any = SimpleNamespace(name="m", path=None)
    return JinjaRenderer(tokenizer, source, EngineConfig(options=options))


def choose(template: str, form: Any = None, settings: Any = None, **fields: Any) -> Any:
    conversation = Conversation(messages=[*USER], **fields)
    return (settings or ThinkingSettings()).choose(conversation, form, renderer(template))


def body(protocol: str, effort: str) -> tuple[str, dict[str, Any]]:
    if protocol == "responses":
        return "/v1/responses", {"input": "hi", "reasoning": {"effort": effort}}
    if protocol == "messages":
        fields = {"max_tokens": 9, "output_config": {"effort": effort}}
        return "/v1/messages", {"messages": USER, **fields}
    return "/v1/chat/completions", {"messages": USER, "reasoning_effort": effort}


PROTOCOLS = {
    "chat": "reasoning_effort",
    "responses": "reasoning.effort",
    "messages": "output_config.effort",
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_effort_none_switches_thoughts_off(make_api, protocol):
    api = make_api(reasoning_parser="think")
    path, fields = body(protocol, "none")
    assert api.call("POST", path, json=fields).status_code == 200
    kwargs = api.engine.rendered[0]["template_kwargs"]
    assert kwargs == {"enable_thinking": False, "thinking": False}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_unknown_effort_is_refused_under_the_clients_name(api, protocol):
    path, fields = body(protocol, "silly")
    reply = api.call("POST", path, json=fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, PROTOCOLS[protocol])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("template", "ignored"), [(EFFORTS, False), (SWITCHED, True)])
def test_effort_that_the_template_does_not_read_is_named(api, protocol, template, ignored):
    api.engine.renderer = renderer(template)
    path, fields = body(protocol, "low")
    reply = api.call("POST", path, json=fields)
    assert reply.status_code == 200
    assert reply.headers.get(HEADER) == (PROTOCOLS[protocol] if ignored else None)


def test_template_arguments_that_the_template_does_not_read_are_named(api):
    api.engine.renderer = renderer(SWITCHED)
    reply = api.chat("hi", chat_template_kwargs={"enable_thinking": True, "foo": 1}, stream=True)
    assert reply.headers[HEADER] == "chat_template_kwargs.foo"


def test_effort_that_the_template_compares_is_known():
    assert choose(EFFORTS, effort="deep").template_kwargs == {"reasoning_effort": "deep"}
    with pytest.raises(InvalidRequest, match="reasoning_effort: got 'deep'"):
        choose(SWITCHED, effort="deep")


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (None, {"enable_thinking": False, "thinking": False}),
        (QWEN3, {"enable_thinking": False, "thinking": False}),
        (HY_V3, {"enable_thinking": False, "thinking": False, "reasoning_effort": "no_think"}),
        (
            MINIMAX_M3,
            {"enable_thinking": False, "thinking": False, "thinking_mode": "disabled"},
        ),
    ],
)
def test_each_family_has_its_own_switch(form, expected):
    assert choose(SWITCHED, form, effort="none").template_kwargs == expected
    assert choose(SWITCHED, form, thinking=False).template_kwargs == expected


def test_budget_ends_thoughts_that_the_template_cannot_switch_off():
    settings = ThinkingSettings(can_end=True)
    found = choose(TEXTS, QWEN3, settings, effort="none")
    assert (found.ends_at_once, found.ignored, found.parser_kwargs) == (True, (), {})
    found = choose(TEXTS, QWEN3, effort="none")
    assert (found.ends_at_once, found.ignored) == (False, ("reasoning_effort",))
    found = choose(SWITCHED, QWEN3, settings, effort="none")
    assert (found.ends_at_once, found.ignored) == (False, ())


def test_effort_map_gives_other_efforts_and_template_arguments():
    options = {"reasoning_effort_map": {"low": {"enable_thinking": False}, "max": "high"}}
    settings = ThinkingSettings.from_options(options, can_end=False)
    found = choose(SWITCHED, None, settings, effort="low")
    assert found.template_kwargs == {"enable_thinking": False}
    found = choose(EFFORTS, None, settings, effort="max")
    assert (found.template_kwargs, found.ignored) == ({"reasoning_effort": "high"}, ())
    with pytest.raises(ConfigError, match=r"--reasoning-effort-map\.low: got 5"):
        ThinkingSettings.from_options({"reasoning_effort_map": {"low": 5}}, can_end=False)


def test_default_template_arguments_hold_for_requests_without_them():
    defaults = {"default_chat_template_kwargs": {"enable_thinking": False}}
    target = renderer(SWITCHED, **defaults)
    assert target.render(USER) == "hiTrue"
    assert target.render(USER, template_kwargs={"enable_thinking": True}) == "hiFalse"
    with pytest.raises(ConfigError, match=r"--default-chat-template-kwargs\.tools"):
        renderer(SWITCHED, default_chat_template_kwargs={"tools": []})
    settings = ThinkingSettings.from_options(defaults, can_end=False)
    assert choose(SWITCHED, None, settings).template_kwargs == {"enable_thinking": False}
    assert choose(SWITCHED, None, settings, thinking=True).template_kwargs["enable_thinking"]
