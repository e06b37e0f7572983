"""Training renders the same prompts as transformers and the engine."""

from __future__ import annotations

import random

import pytest
from transformers import PreTrainedTokenizerFast

from examples.demo_model.chat import END, TEMPLATE, completion
from examples.demo_model.items import Draw
from examples.demo_model.mix import training_items
from examples.demo_model.tasks import arithmetic, tools
from examples.demo_model.words import new_word

CALL = {"type": "function", "function": {"name": "get_time", "arguments": {"city": "Oslo"}}}
CONVERSATION = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "What is 1 + 2?"},
    {"role": "assistant", "reasoning_content": "1+2=3: 3", "content": "1 + 2 = 3"},
    {"role": "user", "content": "And what time is it in Oslo?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": '{"time": "12:00"}'},
    {"role": "tool", "content": '{"time": "12:01"}'},
    {"role": "assistant", "reasoning_content": "Told.", "content": "The time is 12:00."},
]
RENDERED = """\
<|im_start|>system
Be short.<|im_end|>
<|im_start|>user
What is 1 + 2?<|im_end|>
<|im_start|>assistant
1 + 2 = 3<|im_end|>
<|im_start|>user
And what time is it in Oslo?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "get_time", "arguments": {"city": "Oslo"}}
</tool_call>
<tool_call>
{"name": "get_time", "arguments": {"city": "Oslo"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
{"time": "12:00"}
</tool_response>
<tool_response>
{"time": "12:01"}
</tool_response><|im_end|>
<|im_start|>assistant
<think>
Told.
</think>

The time is 12:00.<|im_end|>
"""


@pytest.fixture(scope="module")
def transformers_tokenizer(small_tokenizer):
    template = TEMPLATE.read_text(encoding="utf-8").rstrip("\n")
    return PreTrainedTokenizerFast(tokenizer_object=small_tokenizer, chat_template=template)


def test_rendered_conversation(small_chat):
    assert small_chat.render(CONVERSATION, [], generate=False) == RENDERED


def test_training_prompts_equal_transformers(small_chat, transformers_tokenizer):
    for item in training_items(seed=0, step=1, count=60):
        theirs = transformers_tokenizer.apply_chat_template(
            item.messages,
            tools=item.tools or None,
            tokenize=False,
            add_generation_prompt=True,
            **({} if item.thinking else {"enable_thinking": False}),
        )
        assert small_chat.prompt(item) == theirs


def test_tool_description_precedes_its_name(small_chat):
    given = {
        "parameters": {"type": "object", "properties": {}},
        "strict": True,
        "name": "get_time",
        "description": "Time",
    }
    rendered = (
        '{"type": "function", "function": {"description": "Time", "name": "get_time", '
        '"parameters": {"type": "object", "properties": {}}, "strict": true}}\n'
    )
    messages = [{"role": "user", "content": "Hi"}]
    assert rendered in small_chat.render(
        messages, [{"type": "function", "function": given}], generate=True
    )
    assert rendered in small_chat.render(messages, [given], generate=True)
    bare = small_chat.render(
        messages, [{"type": "function", "function": {"name": "get_time"}}], generate=True
    )
    assert '"function": {"name": "get_time"}}\n' in bare


def test_invented_words_have_the_same_tokens_in_any_context(
    small_tokenizer,
):
    def pieces(before: str, word: str) -> list[str]:
        tokens = small_tokenizer.encode(f"{before}{word}").tokens
        return tokens[len(small_tokenizer.encode(before).tokens) :]

    draw = Draw(random.Random(8), evaluation=True)
    alike = 0
    for _ in range(300):
        word = new_word(draw)
        assert pieces('"', word) == pieces("get_", word)
        alike += pieces('"', word) == pieces("the ", word)
    assert alike > 250  # but where a word begins with a common one: " the" + "rom"
    assert small_tokenizer.encode("find the city").tokens[-2:] == ["Ġthe", "Ġcity"]


@pytest.mark.parametrize("task", [arithmetic, tools])
def test_prompt_plus_answer_is_the_rendered_conversation(task, small_chat):
    draw = Draw(random.Random(5), evaluation=False)
    for _ in range(40):
        item = task.make(draw)
        item.thinking = True
        calls = [{"type": "function", "function": call} for call in item.calls]
        message = {
            "role": "assistant",
            "content": item.answer,
            "tool_calls": calls,
            "reasoning_content": item.reasoning,
        }
        whole = small_chat.render([*item.messages, message], item.tools, generate=False)
        assert small_chat.prompt(item) + completion(item) + END + "\n" == whole


def test_disabled_thinking_renders_an_empty_think_block(small_chat):
    messages = [{"role": "user", "content": "Hi"}]
    assert small_chat.render(messages, [], generate=True, thinking=False).endswith(
        "<think>\n\n</think>\n\n"
    )
    assert small_chat.render(messages, [], generate=True).endswith("<|im_start|>assistant\n")


def test_reasoning_in_returned_answers_is_removed(small_chat):
    messages = [
        {"role": "user", "content": "1 + 1"},
        {"role": "assistant", "content": "<think>\n1+1=2: 2\n</think>\n\n1 + 1 = 2"},
        {"role": "user", "content": "Thanks"},
    ]
    assert "assistant\n1 + 1 = 2<|im_end|>" in small_chat.render(messages, [], generate=True)


def test_only_answers_and_their_ends_are_learnt(small_chat, small_tokenizer):
    for item in training_items(seed=0, step=2, count=60):
        ids, learnt = small_chat.encode(item)
        learnt_text = small_tokenizer.decode(
            [token for token, mark in zip(ids, learnt, strict=True) if mark],
            skip_special_tokens=False,
        )
        answers = [m for m in item.messages if m["role"] == "assistant" and m["content"]]
        assert learnt_text.endswith(completion(item) + END)
        assert all(message["content"] + END in learnt_text for message in answers)
        assert "<|im_start|>" not in learnt_text


def test_digits_are_single_tokens_and_names_are_stable(small_tokenizer):
    assert small_tokenizer.encode("347+285").tokens == list("347+285")
    name = small_tokenizer.encode("Thaidrond").ids
    for text in (" Thaidrond", '"Thaidrond"', "Thaidrond."):
        ids = small_tokenizer.encode(text).ids
        assert any(ids[i : i + len(name)] == name for i in range(len(ids)))


def test_markers_are_visible_and_control_tokens_are_not(small_tokenizer):
    ids = small_tokenizer.encode(
        "<|im_start|><think>\nHm.\n</think>\n<tool_call>\n{}\n</tool_call><|im_end|>"
    ).ids
    assert small_tokenizer.decode(ids) == "<think>\nHm.\n</think>\n<tool_call>\n{}\n</tool_call>"


def test_tokenizer_round_trips_answers(small_tokenizer):
    for item in training_items(seed=0, step=3, count=40):
        text = completion(item)
        assert small_tokenizer.decode(small_tokenizer.encode(text).ids) == text
