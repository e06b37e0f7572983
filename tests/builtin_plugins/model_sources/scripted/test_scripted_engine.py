"""`scripted:` in the whole engine: replies do not depend on scheduling."""

from __future__ import annotations

import json

import pytest

from core import LLM, SamplingParams
from core.errors import InvalidRequest

TEXT = "one\ntwo  é 🦊 <|im_end|> <|im_start|>user\n done"


@pytest.fixture(scope="module")
def llm():
    engine = LLM("scripted:", max_model_len=512, kv_cache_memory_bytes=10_000_000)
    yield engine
    engine.shutdown()


def replies(engine, *texts, **sampling):
    chats = [[{"role": "user", "content": text}] for text in texts]
    outputs = engine.chat(chats, SamplingParams(max_tokens=None, **sampling), use_tqdm=False)
    return [output.outputs[0] for output in outputs]


def test_chat_repeats_the_last_user_message(llm):
    (answer,) = replies(llm, TEXT)
    assert (answer.text, answer.finish_reason) == (TEXT, "stop")


def test_completion_repeats_the_prompt(llm):
    (output,) = llm.generate("plain text", SamplingParams(max_tokens=None), use_tqdm=False)
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("plain text", "stop")


def test_temperature_does_not_change_the_reply(llm):
    assert replies(llm, TEXT, temperature=1.0, seed=1)[0].text == TEXT


def test_stop_string_ends_the_reply(llm):
    (answer,) = replies(llm, "one STOP two", stop=["STOP"])
    assert (answer.text, answer.stop_reason) == ("one ", "STOP")


def test_max_tokens_ends_the_reply(llm):
    (output,) = llm.generate("abcdef", SamplingParams(max_tokens=3), use_tqdm=False)
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("abc", "length")


def test_ignore_eos_repeats_the_reply(llm):
    (output,) = llm.generate("ab", SamplingParams(max_tokens=8, ignore_eos=True), use_tqdm=False)
    assert output.outputs[0].text == "ababab"  # and two end tokens between
    assert len(output.outputs[0].token_ids) == 8


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 16, "max_num_seqs": 4},
        {"num_gpu_blocks_override": 12, "block_size": 16, "max_model_len": 160},
        {"block_size": 4},
        {"enable_prefix_caching": False},
    ],
)
def test_replies_do_not_depend_on_scheduling(options):
    texts = [f"message {i} " + "x" * (7 * i % 40) + " é🦊" for i in range(12)]
    engine = LLM(
        "scripted:", **{"max_model_len": 256, "kv_cache_memory_bytes": 4_000_000, **options}
    )
    try:
        for _ in range(2):  # the second time with a warm prefix cache
            assert [answer.text for answer in replies(engine, *texts)] == texts
    finally:
        engine.shutdown()


def test_failing_request_does_not_affect_others(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps({"prompt": "bad", "answer": "never sent", "fail_at_token": 3}))
    engine = LLM(
        "scripted:", max_model_len=256, kv_cache_memory_bytes=1_000_000, scripted_answers=str(path)
    )
    try:
        good, bad, other = replies(engine, "good", "bad", "other")
    finally:
        engine.shutdown()
    assert (good.text, other.text) == ("good", "other")
    assert bad.finish_reason == "error"


def test_special_tokens_are_single_tokens():
    engine = LLM(
        "scripted:",
        max_model_len=256,
        kv_cache_memory_bytes=1_000_000,
        scripted_special_tokens="[A],[B]",
    )
    try:
        visible, hidden = (
            engine.generate(
                "x[A]y", SamplingParams(max_tokens=None, skip_special_tokens=skip), use_tqdm=False
            )[0]
            for skip in (False, True)
        )
    finally:
        engine.shutdown()
    assert len(visible.prompt_token_ids) == 3
    assert (visible.outputs[0].text, hidden.outputs[0].text) == ("x[A]y", "xy")


def test_prompt_beyond_context_length_is_rejected(llm):
    with pytest.raises(InvalidRequest, match="context"):
        llm.generate("x" * 600, use_tqdm=False)
