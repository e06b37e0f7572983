"""Names of `LLM` that scripts written for vLLM use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from core import LLM, SamplingParams, TextPrompt, TokensPrompt
from core.errors import ConfigError, InvalidRequest, ModelError
from core.testing.checkpoints import make_checkpoint

MESSAGES = [{"role": "user", "content": "hello"}]
ONE = SamplingParams(max_tokens=1, temperature=0)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = make_checkpoint("LlamaForCausalLM", tmp_path_factory.mktemp("llama"), seed=3)
    with LLM(str(folder), max_model_len=128, num_gpu_blocks_override=40, num_threads=1) as engine:
        yield engine


def test_llm_engine_takes_requests_step_by_step(llm: LLM) -> None:
    engine = llm.llm_engine
    engine.add_request("one", "hello", ONE)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert [output.request_id for output in outputs] == ["one"]
    assert engine.model_config.max_model_len == llm.model_config.max_model_len == 128


def test_tokenizer_is_callable(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    ids = tokenizer.encode("hello there")
    assert tokenizer("hello there") == {"input_ids": ids, "attention_mask": [1] * len(ids)}
    assert tokenizer(["hello there", "a"])["input_ids"] == [ids, tokenizer.encode("a")]
    assert len(tokenizer) == tokenizer.vocab_size
    assert tokenizer.decode(ids) == "hello there"


def test_tokenizer_applies_the_chat_template(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    (prompt,) = llm.preprocess_chat(MESSAGES)
    assert ids == prompt["prompt_token_ids"]
    found: Any = tokenizer.apply_chat_template(MESSAGES)
    assert len(found["input_ids"]) == len(found["attention_mask"]) < len(ids)
    own = "{{ messages[0].content }} {{ name }}"
    assert tokenizer.apply_chat_template(
        MESSAGES, chat_template=own, tokenize=False, name="me"
    ) == ("hello me")


def test_unknown_keywords_are_type_errors(llm: LLM) -> None:
    with pytest.raises(TypeError, match="max_modle_len"):
        LLM("scripted:", max_modle_len=64)
    with pytest.raises(TypeError, match="prioritty"):
        llm.generate("a", ONE, use_tqdm=False, prioritty=3)
    with pytest.raises(TypeError, match="chat_templat"):
        llm.chat(MESSAGES, ONE, use_tqdm=False, chat_templat="x")
    # as before, they are errors of the engine, too
    with pytest.raises(ConfigError):
        LLM("scripted:", max_modle_len=64)
    with pytest.raises(InvalidRequest):
        llm.generate("a", ONE, use_tqdm=False, prioritty=3)


def test_prompt_objects_are_equal_to_plain_ones(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    ids = tokenizer.encode("hello")
    prompts: list[Any] = ["hello", TextPrompt(prompt="hello"), TokensPrompt(prompt_token_ids=ids)]
    outputs = llm.generate(prompts, ONE, use_tqdm=False)
    assert len({tuple(output.prompt_token_ids or ()) for output in outputs}) == 1
    with pytest.raises(InvalidRequest, match="a prompt dict needs"):
        llm.generate({"cache_salt": "x"}, ONE, use_tqdm=False)


@pytest.mark.parametrize("content_format", ["auto", "string", "openai"])
def test_content_format_is_an_option_of_chat(llm: LLM, content_format: str) -> None:
    (output,) = llm.chat(MESSAGES, ONE, use_tqdm=False, chat_template_content_format=content_format)
    assert output.finished


def test_new_weights_by_apply_model_clear_the_prefix_cache(llm: LLM) -> None:
    prompt = {"prompt_token_ids": [5 + i for i in range(40)]}
    before = llm.generate(prompt, ONE, use_tqdm=False)[0]
    assert llm.generate(prompt, ONE, use_tqdm=False)[0].num_cached_tokens
    (file,) = Path(llm.model_config.model).glob("*.safetensors")
    head = load_file(file)["lm_head.weight"]
    llm.apply_model(lambda model: model.update_weights([("lm_head.weight", head.flip(0))]))
    after = llm.generate(prompt, ONE, use_tqdm=False)[0]
    assert after.num_cached_tokens == 0
    (token,) = before.outputs[0].token_ids
    assert after.outputs[0].token_ids == [len(head) - 1 - token]


def test_refused_weights_change_nothing(llm: LLM) -> None:
    (version,) = llm.apply_model(lambda model: model.weights_version)
    for tensors in ([("nowhere", torch.zeros(1))], [("lm_head.weight", torch.zeros(1))]):
        with pytest.raises(ModelError, match="do not fit the loaded model"):
            llm.apply_model(lambda model, given=tensors: model.update_weights(given))
    assert llm.apply_model(lambda model: model.weights_version) == [version]


def test_override_generation_config_sets_sampling_defaults() -> None:
    options: dict[str, Any] = {"max_model_len": 64, "override_generation_config": {"top_k": 7}}
    with LLM("scripted:", **options) as llm:
        assert llm.get_default_sampling_params().top_k == 7


def test_prefix_caching_hash_algo_is_sha256() -> None:
    with pytest.raises(ConfigError, match=r"prefix.caching.hash.algo"):
        LLM("scripted:", prefix_caching_hash_algo="xxhash")
