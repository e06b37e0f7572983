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
        special_ids=frozenset({1}),
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


TEXTS = "{{ messages | map(attribute='content') | join }}"
"""Shows every content: a template that loses one is not rendered as it is."""


@pytest.mark.parametrize("template", TEMPLATES)
def test_rendered_prompt_equals_transformers(template):
    template += TEXTS
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
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    assert renderer(TEMPLATES[-1]).render(messages) == "5"


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
        ([{"role": "user", "content": [{"image_url": "a"}]}], "messages[0].content[0].type"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0]"),
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
    target = renderer(turns + "{{ 2 * 3 }}" + TEXTS)
    with pytest.raises(InvalidRequest, match="processor time"):
        target.render(USER, template_kwargs={"count": 99_999})
    assert target.render(USER, template_kwargs={"count": 3}) == "6hi"


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
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        renderer(given=str(tmp_path / "absent.jinja"))


def test_byte_order_mark_of_a_template_file_is_skipped(tmp_path):
    path = tmp_path / "t.jinja"
    path.write_bytes(b"\xef\xbb\xbf{{ messages[0].content }}!")
    assert renderer(given=str(path)).render(USER) == "hi!"


def test_model_without_template_error_names_flag():
    with pytest.raises(InvalidRequest, match="--chat-template FILE"):
        renderer(None).render(USER)


def test_model_without_template_is_named_at_startup(caplog):
    with caplog.at_level("INFO"):
        renderer()
        assert not caplog.messages
        renderer(None)
    assert caplog.messages == [
        "m has no chat template: chats are refused. Give --chat-template FILE to serve them"
    ]


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
        assert target.render(USER, chat_template=f"{i}{TEXTS}") == f"{i}hi"
    assert len(target._compiled) < 30


NAMED = {
    "default": "plain " + TEXTS,
    "tool_use": "{{ tools[0].function.name }} " + TEXTS,
    "rag": "found " + TEXTS,
}


def test_tools_select_tool_use_template():
    target = renderer(NAMED)
    assert (target.render(USER), target.render(USER, tools=TOOLS)) == ("plain hi", "é<b> hi")
    assert renderer({"default": NAMED["default"]}).render(USER, tools=TOOLS) == "plain hi"


def test_model_template_is_selected_by_name():
    assert renderer(NAMED, given="rag").render(USER, tools=TOOLS) == "found hi"
    with pytest.raises(
        ConfigError,
        match=r"--chat-template rug cannot be read: .* The model has: default, tool_use, rag",
    ):
        renderer(NAMED, given="rug")


def test_missing_default_template_lists_others():
    with pytest.raises(
        InvalidRequest,
        match="no chat template that is the default; --chat-template takes one of: rag",
    ):
        renderer({"rag": "found"}).render(USER)


CALLS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }};{% endfor %}"
    "{% endfor %}{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"x": 5}', "x=5;"),
        ({"x": 5}, "x=5;"),
        ('"{\\"x\\": 5}"', "x=5;"),
        ('{"x": ', 'arguments="{\\"x\\": ";'),
        ('"x"', 'arguments="x";'),
        ("[1]", "arguments=[1];"),
        (7, "arguments=7;"),
        ("null", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_broken_call_arguments_become_an_object(arguments, expected):
    call = {"function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}, *USER]
    assert renderer(CALLS).render(messages) == f"{expected}hi"


# Templates of the kinds that refuse or lose conversations: each message is [role]text.
RENDERED = "[{{ m.role }}]{{ m.content }}"
LOOP = "{% for m in messages %}" + RENDERED + "{% endfor %}"
SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('system first') }}{% endif %}" + RENDERED + "{% endfor %}"
)
SYSTEM_SKIPPED = (
    "{% if messages[0].role == 'system' %}[system]{{ messages[0].content }}{% endif %}"
    "{% for m in messages if m.role != 'system' %}" + RENDERED + "{% endfor %}"
)
ALTERNATING = (
    "{% for m in messages %}{% if m.role == 'system' or "
    "(m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}"
    + RENDERED
    + "{% endfor %}"
)
NO_SYSTEM = "{% for m in messages if m.role != 'system' %}" + RENDERED + "{% endfor %}"
S1, S2 = ({"role": "system", "content": text} for text in ("S1", "S2"))
C = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
NEXT = {"role": "user", "content": "c"}


@pytest.mark.parametrize(
    ("template", "messages", "expected"),
    [
        (LOOP, [S1, *C, S2, NEXT], "[system]S1[user]a[assistant]b[system]S2[user]c"),
        (SYSTEM_FIRST, [*C, S2, NEXT], "[system]S2[user]a[assistant]b[user]c"),
        (SYSTEM_FIRST, [S1, S2, NEXT], "[system]S1\nS2[user]c"),
        (SYSTEM_SKIPPED, [S1, *C, S2, NEXT], "[system]S1\nS2[user]a[assistant]b[user]c"),
        (ALTERNATING, [S1, *C, NEXT, S2], "[user]S1\nS2\na[assistant]b[user]c"),
        (ALTERNATING, [NEXT, NEXT], "[user]c\nc"),
        (NO_SYSTEM, [S1, NEXT], "[user]S1\nc"),
        (NO_SYSTEM, [S1], "[user]S1"),
        (LOOP, [{"role": "developer", "content": "D"}, NEXT], "[system]D[user]c"),
        (LOOP + "{# developer #}", [{"role": "developer", "content": "D"}], "[developer]D"),
    ],
)
def test_strict_template_gets_every_text_in_a_form_it_takes(template, messages, expected):
    assert renderer(template).render(messages) == expected


def test_template_for_single_calls_gets_parallel_ones_in_turn():
    template = (
        "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}"
        "{{ raise_exception('single') }}{% endif %}[{{ m.role }}]{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor %}"
    )
    calls = [{"id": name, "function": {"name": name, "arguments": "{}"}} for name in "fg"]
    results = [{"role": "tool", "tool_call_id": name, "content": name.upper()} for name in "fg"]
    messages = [*USER, {"role": "assistant", "content": "so", "tool_calls": calls}, *results]
    expected = "[user]hi[assistant]sof[tool]F[assistant]g[tool]G"
    assert renderer(template).render(messages) == expected


PARTS_ONLY = (
    "{% macro body(x) %}{% for p in x %}{{ p.text }}{% endfor %}{% endmacro %}"
    "{% for m in messages %}[{{ m.role }}]{{ body(m.content) }}{% endfor %}"
)
PARTS_OR_ERROR = (
    "{% for m in messages %}{% if m.content is string %}{{ raise_exception('parts') }}{% endif %}"
    "[{{ m.role }}]{{ m.content | map(attribute='text') | join }}{% endfor %}"
)


@pytest.mark.parametrize("template", [PARTS_ONLY, PARTS_OR_ERROR])
def test_template_that_reads_only_parts_gets_parts(template):
    assert renderer(template).render([S1, *USER]) == "[system]S1[user]hi"


def test_text_that_no_form_shows_is_refused_by_name():
    messages = [*USER, {"role": "critic", "content": "no"}]
    template = "{% for m in messages if m.role != 'critic' %}" + RENDERED + "{% endfor %}"
    with pytest.raises(InvalidRequest, match="role 'critic' that the chat template does not show"):
        renderer(template).render(messages)


def test_text_that_the_template_rewrites_is_not_lost():
    template = "{% for m in messages %}{{ m.content | upper | replace('I', '1') }}{% endfor %}"
    assert renderer(template).render(USER) == "H1"


def test_byte_order_mark_of_template_is_read_away(tmp_path):
    path = tmp_path / "t.jinja"
    path.write_text(LOOP, encoding="utf-8-sig")
    assert renderer(given=str(path)).render(USER) == "[user]hi"
    assert renderer("\N{ZERO WIDTH NO-BREAK SPACE}" + LOOP).render(USER) == "[user]hi"


@pytest.mark.parametrize("content_format", ["string", "openai"])
def test_content_that_is_one_part_is_that_part(content_format):
    template = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"
    subject = renderer(template, content_format=content_format)
    part = {"type": "text", "text": "hi"}
    expected = subject.render([{"role": "user", "content": [part]}])
    assert subject.render([{"role": "user", "content": part}]) == expected
    for wrong in ({"type": "image_url"}, {"type": "text"}, {}):
        with pytest.raises(InvalidRequest, match=r"^messages\[0\]\.content"):
            subject.render([{"role": "user", "content": wrong}])
