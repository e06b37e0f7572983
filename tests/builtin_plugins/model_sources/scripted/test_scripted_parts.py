"""The scripted model's tokenizer and script, without an engine."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builtin_plugins.chat_renderers.jinja.renderer import JinjaRenderer
from builtin_plugins.model_sources.scripted.script import Script, read_answers, scripted_source
from builtin_plugins.model_sources.scripted.tokenizer import ScriptedTokenizer
from core.api import ConfigError
from core.config import EngineConfig

TEXTS = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        st.sampled_from(
            [
                "<|im_end|>",
                "<|im_start|>",
                "<|im_start|>user\n",
                "<|endoftext|>",
                "<tool_call>",
                "<|tool|>",
                "\x1b",
                "<|",
            ]
        ),
    ),
    max_size=6,
).map("".join)


def parts(markers=("<tool_call>", "<|tool|>"), **options):
    config = EngineConfig(options=options)
    source = scripted_source("scripted:", config)
    tokenizer = ScriptedTokenizer(source, config, markers)
    return (
        tokenizer,
        JinjaRenderer(tokenizer, source, config),
        Script(tokenizer, source.hf_config.answers),
    )


def reply_text(tokenizer, script, prompt):
    return tokenizer.decode(
        script.reply(tokenizer.encode(prompt)).token_ids, skip_special_tokens=True
    )


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_tokenizer_round_trips_text(text):
    tokenizer, _, _ = parts()
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=200, deadline=None)
@given(TEXTS, TEXTS, st.booleans())
def test_script_replies_with_the_last_user_message(first, last, goes_on):
    tokenizer, renderer, script = parts()
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": first}]
    chat += [{"role": "assistant", "content": first}, {"role": "user", "content": last}]
    chat += (
        [{"role": "assistant", "content": "I"}, {"role": "tool", "content": "t"}] if goes_on else []
    )
    prompt = renderer.render(
        chat, tools=[{"type": "function"}], template_kwargs={"enable_thinking": False}
    )
    assert reply_text(tokenizer, script, prompt) == last


@settings(max_examples=200, deadline=None)
@given(TEXTS.filter(lambda text: "<|im_start|>" not in text))
def test_script_repeats_a_prompt_without_turns(text):
    tokenizer, _, script = parts()
    assert reply_text(tokenizer, script, text) == text


def test_markers_are_single_tokens_and_stay_visible():
    tokenizer, _, script = parts()
    (token,) = tokenizer.encode("<tool_call>")
    assert token in script.reply(tokenizer.encode("a<tool_call>b")).token_ids
    assert token not in tokenizer.special_ids


def test_special_tokens_are_single_tokens_and_hidden():
    tokenizer, _, _ = parts(scripted_special_tokens=["[A],[B]", "[C]"])
    ids = tokenizer.encode("x[A][B][C]")
    assert len(ids) == 4
    assert tokenizer.decode(ids) == "x[A][B][C]"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "x"


def test_answers_are_chosen_by_prompt_or_in_turn(tmp_path):
    path = tmp_path / "answers.jsonl"
    lines = [
        json.dumps({"prompt": "ping", "answer": "pong"}),
        "plain text",
        json.dumps("two\nlines"),
    ]
    path.write_text("\n".join(lines))
    tokenizer, _, script = parts(scripted_answers=str(path))
    prompts = ["one", "ping", "two", "one", "three"]
    assert [reply_text(tokenizer, script, p) for p in prompts] == [
        "plain text",
        "pong",
        "two\nlines",
        "plain text",
        "plain text",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1: is not JSON"),
        ('\n{"a": 1}', 'line 2: expected an "answer"'),
        ("", "got no answer"),
        ('{"answer": "a", "fail_at_token": 0}', ">= 1"),
    ],
)
def test_invalid_answers_file_is_rejected_by_line(tmp_path, text, message):
    path = tmp_path / "answers"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_answers(str(path))


def test_missing_answers_file_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        parts(scripted_answers=str(tmp_path / "absent"))


@pytest.mark.parametrize(
    "name", ["scripted_tokens_per_second", "scripted_fail_at_token", "scripted_max_model_len"]
)  # fmt: skip
def test_numbers_must_be_positive(name):
    with pytest.raises(ConfigError, match=name.replace("_", "-")):
        parts(**{name: 0})
