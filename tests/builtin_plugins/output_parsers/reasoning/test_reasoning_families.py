"""Reasoning of every family: missing tags, switches, between calls, in every chunking."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builtin_plugins.output_parsers.api import (
    OutputParser,
    ParseRequest,
    ReasoningFormat,
    fit_format,
)
from builtin_plugins.output_parsers.reasoning.answer_finder import MarkerAnswerFinder
from builtin_plugins.output_parsers.testing import NUM_CHUNKINGS, Parsed, Reader
from core.plugin import load_plan, make_plan

REGISTRY = load_plan(make_plan(["none", "reasoning_parsers", "tool_parsers"]))
DESCRIBED = {"fields": {"thinking": {"open": "<think>", "close": "</think>"}}}
"""Response template of a checkpoint, for the format `hf`."""
REASONING: dict[str, ReasoningFormat] = {
    r.entry.name: fit_format(REGISTRY.load(r), DESCRIBED)
    for r in REGISTRY.entries("reasoning_parsers")
}
TOOLS = {r.entry.name: REGISTRY.load(r) for r in REGISTRY.entries("tool_parsers")}

THINK = ("<think>", "</think>")
HARMONY = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>")
MUSE = ("to=self<|message|>", "<|eom|><|start|>assistant to=user<|message|>")
TAGS: dict[str, tuple[str, str]] = {
    "cohere_command3": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "cohere_command4": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "gemma4": ("<|channel>thought\n", "<channel|>"),
    "granite": ("Here is my thought process:", "Here is my response:"),
    "hy_v4": ("<think:opensource>", "</think:opensource>"),
    "inkling": ("<|content_thinking|>", "<|end_message|><|message_model|><|content_text|>"),
    "k2_horizon": ("<ifm|think>", "</ifm|think>"),
    "kimi_k3": ("<|open|>think<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>"),
    "minimax_m3": ("<mm:think>", "</mm:think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "muse": MUSE,
    "muse_glimmer": MUSE,
    "musespark1x": MUSE,
    "openai_gptoss": HARMONY,
    "plamo3": ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
}
CHANNELS = {"inkling", "kimi_k3", "muse", "muse_glimmer", "musespark1x", "openai_gptoss"}
NONE = {"identity", "minimax_m2_append_think"}
ON: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"thinking": True},
    "deepseek_v4": {"thinking": True},
    "deepseek_v41": {"enable_thinking": True},
    "hy_v3": {"reasoning_effort": "high"},
    "poolside_v1": {"enable_thinking": True},
}
BEGUN = [
    "deepseek_r1",
    "deepseek_v3",
    "deepseek_v4",
    "deepseek_v41",
    "ernie45",
    "glm45",
    "glm47",
    "granite_thinking_parser",
    "holo2",
    "hy_v3",
    "hy_v4",
    "k2_horizon",
    "kimi_k2",
    "kimi_k3",
    "ling3",
    "mimo",
    "minicpmv",
    "minimax_m2",
    "nemotron_v3",
    "olmo3",
    "plamo3",
    "poolside_v1",
    "qwen3",
    "seed_oss",
    "step3",
    "step3p5",
    "step5",
]
"""Families that start with reasoning even without a start tag."""
AGAIN = [
    "deepseek_v4",
    "deepseek_v41",
    "gemma4",
    "glm45",
    "glm47",
    "hf",
    "hy_v3",
    "hy_v4",
    "kimi_k2",
    "ling3",
    "minimax_m2",
    "minimax_m3",
    "mistral",
    "plamo3",
]
THOUGHTS = sorted(set(REASONING) - NONE)


@pytest.fixture(params=[20, pytest.param(NUM_CHUNKINGS, marks=pytest.mark.slow)])
def count(request: pytest.FixtureRequest) -> int:
    """Number of random chunkings."""
    return int(request.param)


def reader(name: str, prompt_end: str = "", **template_kwargs: Any) -> Reader:
    kwargs = {**ON.get(name, {}), **template_kwargs}
    return Reader(
        reasoning=REASONING[name],
        request=ParseRequest(template_kwargs=kwargs, prompt_end=prompt_end),
    )


def tags(name: str) -> tuple[str, str]:
    return TAGS.get(name, THINK)


@pytest.mark.parametrize("name", THOUGHTS)
def test_reasoning_and_content_are_split(name: str, count: int) -> None:
    start, end = tags(name)
    for thoughts, answer in (
        ("hm", "Yes."),
        ("gr\u00f6\u00dfer \u6f22\u5b57 \U0001f600\n\n<b>1 < 2", "[a] {b}\n c"),
    ):
        found = reader(name).check(f"{start}\n{thoughts}\n{end}\n\n{answer}", count=count)
        assert found == Parsed(reasoning=thoughts, content=answer)


@pytest.mark.parametrize("name", THOUGHTS)
def test_reasoning_without_end_is_reasoning(name: str, count: int) -> None:
    start, end = tags(name)
    assert reader(name).check(f"{start}hm, and no end", count=count) == Parsed(
        reasoning="hm, and no end"
    )
    assert reader(name).check(f"{start}hm{end[:2]}", count=count) == Parsed(
        reasoning=f"hm{end[:2]}"
    )
    assert reader(name).check(start + end, count=count) == Parsed()


@pytest.mark.parametrize("name", BEGUN)
def test_start_tag_may_be_missing(name: str, count: int) -> None:
    end = tags(name)[1]
    assert reader(name).check(f"hm{end}Yes.", count=count) == Parsed(reasoning="hm", content="Yes.")
    assert reader(name).check("hm", count=count) == Parsed(reasoning="hm")


@pytest.mark.parametrize("name", sorted(set(THOUGHTS) - set(BEGUN)))
def test_text_without_start_tag_is_content(name: str, count: int) -> None:
    assert reader(name).check("Yes, it is.", count=count) == Parsed(content="Yes, it is.")


@pytest.mark.parametrize("name", sorted(set(THOUGHTS) - CHANNELS))
def test_prompt_may_open_or_close_the_reasoning(name: str, count: int) -> None:
    start, end = tags(name)
    start = start.removesuffix("thought\n")
    opened = reader(name, f"<assistant>\n{start}\n").check(f"hm{end}Yes.", count=count)
    assert opened == Parsed(reasoning="hm", content="Yes.")
    assert reader(name, f"<assistant>{start}\n\n{end}\n\n").check("Yes.", count=count) == Parsed(
        content="Yes."
    )


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("deepseek_v3", {"thinking": False}),
        ("deepseek_v4", {"enable_thinking": False, "thinking": False}),
        ("glm45", {"enable_thinking": False}),
        ("granite_thinking_parser", {"enable_thinking": False}),
        ("holo2", {"thinking": False}),
        ("hy_v3", {"reasoning_effort": "no_think"}),
        ("kimi_k2", {"thinking": False}),
        ("mimo", {"enable_thinking": False}),
        ("nemotron_v3", {"enable_thinking": False}),
        ("minicpm5", {"enable_thinking": False}),
        ("plamo3", {"enable_thinking": False}),
        ("poolside_v1", {"enable_thinking": False}),
        ("qwen3", {"enable_thinking": False}),
    ],
)
def test_disabled_reasoning_leaves_content_only(name: str, off: dict[str, Any], count: int) -> None:
    assert reader(name, **off).check("Yes, it is.", count=count) == Parsed(content="Yes, it is.")


def test_deepseek_v3_and_hy_v3_do_not_reason_by_default(count: int) -> None:
    for name in ("deepseek_v3", "hy_v3"):
        assert Reader(reasoning=REASONING[name]).check("Yes.", count=count) == Parsed(
            content="Yes."
        )


@pytest.mark.parametrize("name", AGAIN)
def test_reasoning_may_resume_after_content(name: str, count: int) -> None:
    start, end = tags(name)
    found = reader(name).check(f"{start}a{end}One.\n{start}b{end}Two.", count=count)
    assert found == Parsed(reasoning="ab", content="One.\nTwo.")


@pytest.mark.parametrize("name", sorted(set(THOUGHTS) - set(AGAIN) - CHANNELS - {"granite"}))
def test_start_tag_in_content_is_text_and_end_tag_is_dropped(name: str, count: int) -> None:
    start, end = tags(name)
    found = reader(name).check(f"{start}a{end}The tag {start} is there.{end} It ends.", count=count)
    assert found == Parsed(reasoning="a", content=f"The tag {start} is there. It ends.")


OPTIONAL = sorted(set(THOUGHTS) - set(BEGUN) - CHANNELS)
"""Families with optional reasoning, which needs a start tag."""


@pytest.mark.parametrize("name", OPTIONAL)
@pytest.mark.parametrize(
    "thoughts", ["hm", "hm\n\n1 < 2, [a] {b}", "gr\u00f6\u00dfer \u6f22\u5b57"]
)
def test_text_before_lone_end_tag_is_reasoning_unless_streamed(
    name: str, thoughts: str, count: int
) -> None:
    """After vLLM's tests of its parsers for Qwen 3 and Gemma 4."""
    one = reader(name)
    end = tags(name)[1]
    whole = replace(one, request=replace(one.request, whole=True))
    for special in (frozenset[str](), frozenset({end})):
        by_id = replace(whole, special=special)
        assert by_id.check(f"{thoughts}{end}\n\nYes.", count=count) == Parsed(
            reasoning=thoughts, content="Yes."
        )
        assert by_id.check(f"{thoughts}{end}", count=count) == Parsed(reasoning=thoughts)
        assert by_id.check(f"{thoughts}{end[:-1]}", count=count) == Parsed(
            content=f"{thoughts}{end[:-1]}"
        )
        assert by_id.check("Yes.\n", count=count) == Parsed(content="Yes.\n")


@pytest.mark.parametrize("name", OPTIONAL)
def test_lone_end_tag_is_never_visible(name: str, count: int) -> None:
    """After vLLM's test of its parser for Gemma 4: streamed content stays content."""
    end = tags(name)[1]
    assert reader(name).check(f"One{end}two.", count=count) == Parsed(content="Onetwo.")
    assert reader(name).check(f"One{end}", count=count) == Parsed(content="One")
    off = reader(name, enable_thinking=False)
    assert off.check(f"One.{end}\nTwo.", count=count) == Parsed(content="One.\nTwo.")


@pytest.mark.parametrize("name", ["mistral", "gemma4", "minimax_m3"])
def test_reasoning_may_follow_content(name: str, count: int) -> None:
    """After vLLM's tests of its parsers for Mistral and Gemma 4."""
    start, end = tags(name)
    found = reader(name).check(f"Before\n{start}hm{end}\nafter.", count=count)
    assert found == Parsed(reasoning="hm", content="Before\nafter.")


@pytest.mark.parametrize("name", ["ernie45", "hunyuan_a13b"])
def test_tags_around_content_are_dropped(name: str, count: int) -> None:
    tag = {"ernie45": "response", "hunyuan_a13b": "answer"}[name]
    text = f"<think>\nhm\n</think>\n\n<{tag}>\nYes.\n</{tag}>\n"
    assert reader(name).check(text, count=count) == Parsed(reasoning="hm", content="Yes.")
    assert reader(name).check(f"<think>hm</think><{tag}>Yes.", count=count) == Parsed(
        reasoning="hm", content="Yes."
    )


def test_identity_and_append_think_leave_all_text_in_content(count: int) -> None:
    text = "hm</think>Yes."
    assert reader("identity").check(text, count=count) == Parsed(content=text)
    for given in (text, f"<think>{text}"):
        found = reader("minimax_m2_append_think", "<think>\n").check(given, count=count)
        assert found == Parsed(content=f"<think>{text}")


def test_k2_horizon_reads_tags_of_three_efforts(count: int) -> None:
    for effort in ("think", "think_fast", "think_faster"):
        found = reader("k2_horizon", f"<ifm|{effort}>").check(f"hm</ifm|{effort}>Yes.", count=count)
        assert found == Parsed(reasoning="hm", content="Yes.")


CALL = '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>'
SECTION = f"<|tool_calls_section_begin|>{CALL}<|tool_calls_section_end|>"
INVOKE = (
    '<minimax:tool_call><invoke name="f"><parameter name="a">1</parameter></invoke>'
    "</minimax:tool_call>"
)
PAIRS = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
COMMENTARY = (
    '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": '
    "1}<|call|>"
    "<|start|>assistant<|channel|>analysis<|message|>b<|end|>"
)


@pytest.mark.parametrize(
    ("name", "tool_parser", "text", "expected"),
    [
        (
            "kimi_k2",
            "kimi_k2",
            f"a</think>Look:{SECTION}<think>b</think>",
            Parsed("Look:", (("f", {"a": 1}),), "ab"),
        ),
        ("kimi_k2", "kimi_k2", f"a {SECTION}", Parsed("", (("f", {"a": 1}),), "a")),
        (
            "minimax_m2",
            "minimax_m2",
            f"a</think>\n{INVOKE}\n<think>b</think>",
            Parsed("", (("f", {"a": "1"}),), "ab"),
        ),
        (
            "glm45",
            "glm45",
            f"<think>a</think>\n{PAIRS}<think>b</think>Yes.",
            Parsed("Yes.", (("f", {"a": 1}),), "ab"),
        ),
        (
            "minicpm5",
            "minicpm5",
            '<think>a <function name="f"><param name="a">1</param></function>',
            Parsed("", (("f", {"a": "1"}),), "a"),
        ),
        ("glm45", "glm45", f"<think>{PAIRS}</think>Yes.", Parsed("Yes.", (), PAIRS)),
        (
            "openai_gptoss",
            "openai",
            f"{HARMONY[0]}a<|end|>{COMMENTARY}",
            Parsed("", (("f", {"a": 1}),), "ab"),
        ),
        (
            "openai_gptoss",
            "openai",
            f"{HARMONY[0]}a{HARMONY[1]}Yes.<|return|>",
            Parsed("Yes.", (), "a"),
        ),
        (
            "openai_gptoss",
            "openai",
            ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}',
            Parsed("", (("f", {"a": 1}),)),
        ),
        (
            "openai_gptoss",
            "openai",
            "<|channel|>commentary<|message|>Look.<|end|><|start|>assistant "
            'to=functions.f<|channel|>commentary<|message|>{"a"',
            Parsed('Look.<|start|>assistant to=functions.f<|channel|>commentary<|message|>{"a"'),
        ),
        (
            "inkling",
            "inkling",
            "<|content_thinking|>a<|end_message|><|message_model|>f<|content_invoke_tool_json|>"
            '{"name":"f","args":{"a":1}}'
            "<|end_message|><|content_model_end_sampling|>",
            Parsed("", (("f", {"a": 1}),), "a"),
        ),
        (
            "kimi_k3",
            "kimi_k3",
            '<|open|>think<|sep|>a<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool="f" '
            'index="1"<|sep|>'
            '<|open|>argument key="a" '
            'type="number"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|>'
            "<|close|>tools<|sep|><|close|>message<|sep|>",
            Parsed("", (("f", {"a": 1}),), "a"),
        ),
        (
            "muse_glimmer",
            "muse_glimmer",
            ' to=self<|message|>a<|eom|><|start|>assistant to=f<|message|><atem:invoke name="f">'
            '<atem:parameter name="a">1</atem:parameter></atem:invoke><|eot|>',
            Parsed("", (("f", {"a": 1}),), "a"),
        ),
    ],
)
def test_reasoning_and_calls_of_one_output(
    name: str, tool_parser: str, text: str, expected: Parsed, count: int
) -> None:
    tools = TOOLS[tool_parser]
    one = Reader(tools=tools, reasoning=REASONING[name])
    assert one.check(text, count=count) == expected
    markers = {*tools.markers, *REASONING[name].markers}
    special = frozenset(m for m in markers if m in text and m not in expected.reasoning)
    by_id = Reader(tools=tools, reasoning=REASONING[name], special=special)
    found = by_id.check(text, count=count)
    assert (found.calls, found.reasoning) == (expected.calls, expected.reasoning)


@pytest.mark.parametrize("name", sorted(CHANNELS))
def test_channel_tool_parsers_alone_split_reasoning(name: str, count: int) -> None:
    start, end = tags(name)
    tools = TOOLS["openai" if name == "openai_gptoss" else name]
    assert Reader(tools=tools).check(f"{start}hm{end}Yes.", count=count) == Parsed("Yes.", (), "hm")


FORM = '{"a": "</think> <think> [THINK] <tool_call>{}</tool_call> <answer>"}'


@pytest.mark.parametrize("name", sorted(set(REASONING) - NONE - CHANNELS))
@pytest.mark.parametrize("switch", [{}, {"enable_thinking": False, "thinking": False}])
@pytest.mark.parametrize("whole", [False, True])
def test_parser_ends_reasoning_where_its_bounds_do(
    name: str, switch: dict[str, Any], whole: bool
) -> None:
    start, end = tags(name)
    form = REASONING[name]
    for prompt_end in ("", start, f"{start}\n\n{end}\n\n"):
        request = ParseRequest(
            template_kwargs={**ON.get(name, {}), **switch},
            prompt_end=prompt_end,
            whole=whole,
            is_constrained=True,
        )
        for text in (
            f"{start}hm <tool_call>{{}}</tool_call>{end}{FORM}",
            f"hm{end}{FORM}",
            FORM,
            f"{start}hm",
        ):
            finder = MarkerAnswerFinder(form.bounds(request))
            answer = "".join(piece for piece, is_answer in finder.split(text) if is_answer)
            parsed = OutputParser(request, reasoning=form, show_special=True).whole(text)
            assert parsed.content == (answer + finder.flush()).strip(), (prompt_end, text)
