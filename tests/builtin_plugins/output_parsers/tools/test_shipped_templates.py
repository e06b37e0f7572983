"""Chat templates shipped with the renderer: the family's parser reads the calls they render."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from builtin_plugins.chat_renderers.jinja.renderer import SHIPPED, JinjaRenderer
from builtin_plugins.output_parsers.testing import Parsed, Reader
from core.api import ConfigError, EngineConfig
from core.config.sections import ModelConfig
from tests.builtin_plugins.output_parsers.tools.test_call_syntax import FORMATS, REQUEST

HEAD = re.compile(r"{# .+: --tool-call-parser ([\w-]+)")
PAIRS = {"qwen3_vl_reranker", "jina_reranker"}
"""Templates for a query and a document, which call no tools."""
PARSERS = {
    file.stem: found[1] if (found := HEAD.match(file.read_text(encoding="utf-8"))) else ""
    for file in SHIPPED.glob("*.jinja")
    if file.stem not in PAIRS
}
"""Parser by template, as its first line names it."""
CALLS = [
    ("get_weather", {"city": 'S\u00e3o "Paulo"\n', "days": 3, "sure": True}),
    ("search", {"where": {"a": [1, {"b": None}]}, "lines": ["x", 2.5]}),
]
SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>"}
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "How is the weather?"}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": f"call{i}abcd",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for i, (name, arguments) in enumerate(CALLS)
    ],
}
RESULTS = [
    {"role": "tool", "content": f"result {i}", "tool_call_id": f"call{i}abcd"} for i in range(2)
]
ANSWERED = [
    CALLED,
    *RESULTS,
    {"role": "assistant", "content": "It rains."},
    {"role": "user", "content": "Thanks."},
]


def renderer(template: str) -> JinjaRenderer:
    config: Any = EngineConfig(model=ModelConfig(chat_template=template))
    tokenizer: Any = SimpleNamespace(
        chat_template=None, eos_token_id=None, special_ids=(), special_tokens_map=SPECIAL
    )
    source: Any = SimpleNamespace(name="m")
    return JinjaRenderer(tokenizer, source, config)


def test_every_template_names_its_parser() -> None:
    assert {file.stem for file in SHIPPED.glob("*")} == {*PARSERS, *PAIRS}
    assert {*PARSERS.values()} <= {*FORMATS}


@pytest.mark.parametrize("begin", [[USER], [SYSTEM, USER]])
@pytest.mark.parametrize("name", PARSERS)
def test_rendered_calls_are_parsed_back(name: str, begin: list[dict[str, Any]]) -> None:
    chat = renderer(name)
    prompt = chat.render(begin, tools=REQUEST.tools)
    rendered = chat.render([*begin, CALLED], tools=REQUEST.tools, add_generation_prompt=False)
    assert rendered.startswith(prompt)
    written = re.split(
        r"<eos>|<\|e\w+\||<\|im_end|<end_of_sen|<\uff5cend\u2581of\u2581sen",
        rendered[len(prompt) :],
    )[0]
    found = Reader(tools=FORMATS[PARSERS[name]], request=REQUEST).check(written, count=2)
    assert found == Parsed(calls=tuple((name, dict(arguments)) for name, arguments in CALLS))


@pytest.mark.parametrize("name", PARSERS)
def test_template_renders_the_whole_conversation(name: str) -> None:
    chat = renderer(name)
    whole = chat.render([SYSTEM, USER, *ANSWERED], tools=REQUEST.tools)
    for text in (
        "Be brief.",
        "How is the weather?",
        "get_weather",
        "result 0",
        "result 1",
        "It rains.",
        "Thanks.",
    ):
        assert text in whole
    alone = chat.render([USER])
    assert "How is the weather?" in alone
    assert not any(sign in alone for sign in ("call", "tool", "function"))


def test_template_is_found_by_name_and_by_vllm_path() -> None:
    by_name = renderer("mistral")
    by_path = renderer("examples/tool_chat_template_mistral.jinja")
    assert by_name.render([USER]) == by_path.render([USER])
    with pytest.raises(ConfigError, match=r"no_such cannot be .*By name there are: deepseekr1, "):
        renderer("no_such")
