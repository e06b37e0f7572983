"""SentencePiece-like tokenizers: texts and bytes of single tokens, and words with a space."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from core import LLM, SamplingParams
from core.testing.checkpoints import make_checkpoint


def write_tokenizer(folder: Path) -> Tokenizer:
    """Write a BPE tokenizer with byte fallback, in which spaces are part of the next token."""
    vocab = {text: index for index, text in enumerate(("<unk>", "<s>", "</s>"))}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for character in "▁abcdefgh .":
        vocab.setdefault(character, len(vocab))
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    made = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens([AddedToken(text, normalized=False) for text in ("<s>", "</s>")])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "</s>"}))
    return made


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, Tokenizer]]:
    folder = make_checkpoint("Qwen3ForCausalLM", tmp_path_factory.mktemp("spm") / "model", seed=1)
    tokenizer = write_tokenizer(folder)
    with LLM(str(folder), max_model_len=64, log_level="error") as llm:
        yield llm, tokenizer


def forced(llm: LLM, tokens: list[int], **more: Any) -> Any:
    sampling = SamplingParams(
        temperature=0, max_tokens=3, allowed_token_ids=tokens, ignore_eos=True, **more
    )
    return llm.generate(["ab"], sampling, use_tqdm=False)[0]


def test_logprobs_keep_the_space_of_each_token(opened: tuple[LLM, Tokenizer]) -> None:
    llm, tokenizer = opened
    word = tokenizer.token_to_id("▁ab")
    output = forced(llm, [word], logprobs=2, prompt_logprobs=0).outputs[0]
    entries = [position[word] for position in output.logprobs or ()]
    assert [entry.decoded_token for entry in entries] == [" ab"] * 3
    assert "".join(str(entry.decoded_token) for entry in entries) == output.text


def test_prompt_logprobs_keep_the_space_of_each_token(opened: tuple[LLM, Tokenizer]) -> None:
    llm, _ = opened
    sampling = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    output = llm.generate(["ab c ab"], sampling, use_tqdm=False)[0]
    ids = output.prompt_token_ids or []
    positions = output.prompt_logprobs or []
    texts = [
        position[token].decoded_token
        for token, position in zip(ids, positions, strict=True)
        if position
    ]
    assert texts == [" ab", " ", "c", " ab"]


def test_bytes_of_partial_characters_are_exact(opened: tuple[LLM, Tokenizer]) -> None:
    llm, tokenizer = opened
    part = tokenizer.token_to_id("<0xE2>")
    output = forced(llm, [part], logprobs=0).outputs[0]
    entries = [position[part] for position in output.logprobs or ()]
    assert [entry.token_bytes for entry in entries] == [b"\xe2"] * 3
    assert {entry.decoded_token for entry in entries} == {"\N{REPLACEMENT CHARACTER}"}


@pytest.mark.parametrize("word", [" ab", "ab"])
def test_bad_word_with_a_space_is_avoided(opened: tuple[LLM, Tokenizer], word: str) -> None:
    llm, tokenizer = opened
    spaced = tokenizer.token_to_id("▁ab")
    other = tokenizer.token_to_id("c")
    bias = {spaced: 100.0}
    assert forced(llm, [spaced, other], logit_bias=bias).outputs[0].text == " ab ab ab"
    found = forced(llm, [spaced, other], logit_bias=bias, bad_words=[word]).outputs[0].text
    assert found == "ccc"
