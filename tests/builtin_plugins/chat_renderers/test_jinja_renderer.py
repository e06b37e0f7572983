"""The Jinja chat renderer: equal to transformers' rendering, and safe with untrusted templates."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builtin_plugins.chat_renderers.jinja.renderer import JinjaRenderer
from core.api import ConfigError, InvalidRequest
from core.config import EngineConfig
from core.config.sections import ModelConfig

SOURCE = SimpleNamespace(name="m", path=None)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
USER = [{"role": "user", "content": "hi"}]


def renderer(template=CHATML, given=None, content_format="auto"):
    tokenizer = SimpleNamespace(
        chat_template=template,
        eos_token_id=1,
        token_text=lambda token: "</s>",
        special_tokens_map={"bos_token": "<s>"},
    )
    config = EngineConfig(
        model=ModelConfig(chat_template=given),
        options={"chat_template_content_format": content_format},
    )
    return JinjaRenderer(tokenizer, SOURCE, config)


TEMPLATES = [
    CHATML,
    "{{ bos_token }}{% for m in messages %}{{ m['content'] | trim }}{{ eos_token }}{% endfor %}",
    "{% for m in messages %}\n  {%- if loop.first %}{% continue %}{% endif %}\n  {{ m.content "
    "}}\n{% endfor %}",
    "{% for t in tools or [] %}{{ t | tojson(indent=2) }}{% endfor %}{{ messages | tojson }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ "
    "ns.n }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{{ dict(a=1) }}{% for m in messages %}{{ m.reasoning_content }}{{ m.thinking }}{% endfor %}{{ "
    "enable_thinking }}",
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments.x }}{% endfor "
    "%}{% endfor %}",
]
TOOLS = [{"type": "function", "function": {"name": "é<b>", "parameters": {"x": [1, None]}}}]
CHAT = [
    {"role": "system", "content": " be <b> 'good' & \"kind\" "},
    {"role": "user", "content": "line\nline é"},
    {
        "role": "assistant",
        "content": "so",
        "reasoning_content": "hm",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 5}}}],
    },
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_rendered_prompt_equals_transformers(template):
    from transformers.utils.chat_template_utils import render_jinja_template

    special = {"bos_token": "<s>", "eos_token": "</s>"}
    for begins in (False, True):
        (expected,), _ = render_jinja_template(
            [CHAT],
            tools=TOOLS,
            chat_template=template,
            add_generation_prompt=begins,
            enable_thinking=False,
            **special,
        )
        prompt = renderer(template).render(
            CHAT,
            tools=TOOLS,
            add_generation_prompt=begins,
            template_kwargs={"enable_thinking": False},
        )
        assert prompt == expected


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_rendered_text_is_unchanged(text):
    prompt = renderer().render([{"role": "user", "content": text}], add_generation_prompt=False)
    assert prompt == f"<|im_start|>user\n{text}<|im_end|>\n"


def test_tool_call_arguments_are_objects_in_template():
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": 5}'}}
    assert (
        renderer(TEMPLATES[-1]).render(
            [{"role": "assistant", "content": None, "tool_calls": [call]}]
        )
        == "5"
    )


def test_content_parts_are_joined_for_text_templates():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "a\nb" in renderer().render([{"role": "user", "content": parts}])


def test_templates_with_part_loops_get_parts():
    template = (
        "{% for m in messages %}{% for p in m['content'] %}[{{ p.text }}]{% endfor %}{% endfor %}"
    )
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert renderer(template).render([{"role": "user", "content": parts}]) == "[a][b]"
    assert renderer(template).render(USER) == "[hi]"


def test_final_message_is_continued():
    chat = [*USER, {"role": "assistant", "content": "I was say "}]
    prompt = renderer().render(chat, add_generation_prompt=False, continue_final_message=True)
    assert prompt.endswith("<|im_start|>assistant\nI was say ")


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([USER[0], "x"], "messages[1]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": ["x"]}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0]"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_bad_message_error_names_index(messages, field):
    with pytest.raises(InvalidRequest) as caught:
        renderer().render(messages)
    assert caught.value.field == field


def test_template_exception_reaches_client():
    template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(
        InvalidRequest, match="messages: the chat template refused them: roles must alternate"
    ):
        renderer(template).render(USER)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ range(10**9) | list }}",
    ],
)
def test_template_sandbox_blocks_escapes(template):
    try:
        rendered = renderer(template).render(USER)
    except InvalidRequest:
        rendered = ""
    assert rendered == ""  # refused, or undefined, which renders as nothing


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "more than 0.05 s of processor time",
        ),
        (
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ "
            "f(60) }}",
            "more than 0.05 s of processor time",
        ),
        (
            "{% for a in range(2000) %}{{ messages[0].content }}{% endfor %}",
            "more than 3000 characters",
        ),
        ("{{ 'a' * 10**9 }}", r"\* makes a value that is too large"),
        ("{{ [1] * 10**9 }}", r"\* makes a value that is too large"),
        ("{{ 10 ** 10000000 }}", r"\*\* makes a value that is too large"),
    ],
)
def test_template_rendering_is_limited(monkeypatch, template, message):
    monkeypatch.setattr("builtin_plugins.chat_renderers.jinja.budget.MAX_CPU_S", 0.05)
    monkeypatch.setattr("builtin_plugins.chat_renderers.jinja.budget.MAX_CHARS", 3000)
    with pytest.raises(InvalidRequest, match=message):
        renderer(template).render(USER)


def test_rendering_limit_is_per_request(monkeypatch):
    monkeypatch.setattr("builtin_plugins.chat_renderers.jinja.budget.MAX_CPU_S", 0.05)
    turns = "{% for a in range(count) %}{% for b in range(count) %}{% endfor %}{% endfor %}"
    target = renderer(turns + "{{ 2 * 3 }}")
    with pytest.raises(InvalidRequest, match="processor time"):
        target.render(USER, template_kwargs={"count": 99_999})
    assert target.render(USER, template_kwargs={"count": 3}) == "6"


def test_template_is_compiled_at_startup():
    with pytest.raises(
        ConfigError, match=r"the chat template of m cannot be compiled: .* \(line 1\)"
    ):
        renderer("{% if %}")
    with pytest.raises(ConfigError, match="--chat-template cannot be compiled"):
        renderer(given="{% if %}")


def test_template_may_be_a_file(tmp_path):
    path = tmp_path / "t.jinja"
    path.write_text("{{ messages[0].content }}!")
    assert renderer(given=str(path)).render(USER) == "hi!"
    with pytest.raises(ConfigError, match="cannot be read as a file"):
        renderer(given=str(tmp_path / "absent.jinja"))


def test_model_without_template_error_names_flag():
    with pytest.raises(InvalidRequest, match="--chat-template FILE"):
        renderer(None).render(USER)


def test_template_kwargs_reject_request_fields():
    with pytest.raises(InvalidRequest, match="chat_template_kwargs"):
        renderer().render(USER, template_kwargs={"messages": []})


def test_documents_need_supporting_template():
    documents = [{"text": "a"}, {"text": "b"}]
    shows = renderer(
        "{% for each in documents or [] %}{{ each.text }}{% endfor %}{{ messages[0].content }}"
    )
    messages = [{"role": "user", "content": "c"}]
    assert shows.render(messages, template_kwargs={"documents": documents}) == "abc"
    assert shows.render(messages) == "c"
    with pytest.raises(InvalidRequest, match="documents: are not read by the chat template"):
        renderer().render(messages, template_kwargs={"documents": documents})


def test_request_template_cache_is_bounded():
    target = renderer()
    for i in range(100):
        assert target.render(USER, chat_template=f"{i}") == str(i)
    assert len(target._compiled) < 30


NAMED = {"default": "plain", "tool_use": "{{ tools[0].function.name }}", "rag": "found"}


def test_tools_select_tool_use_template():
    target = renderer(NAMED)
    assert (target.render(USER), target.render(USER, tools=TOOLS)) == ("plain", "é<b>")
    assert renderer({"default": "plain"}).render(USER, tools=TOOLS) == "plain"


def test_model_template_is_selected_by_name():
    assert renderer(NAMED, given="rag").render(USER, tools=TOOLS) == "found"
    with pytest.raises(
        ConfigError,
        match=r"--chat-template rug is no template .* The model has: default, tool_use, rag",
    ):
        renderer(NAMED, given="rug")


def test_missing_default_template_lists_others():
    with pytest.raises(
        InvalidRequest,
        match="no chat template that is the default; --chat-template takes one of: rag",
    ):
        renderer({"rag": "found"}).render(USER)
