"""Incremental detokenization from token bytes equals the tokenizers library."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

import builtin_plugins.model_sources.demo
from builtin_plugins.tokenizers.hf.fast import FastTokenizer
from builtin_plugins.tokenizers.hf.settings import read_settings
from core.frontend.text.detokenizer import ByteDetokenizer, make_detokenizer

FOLDER = Path(next(iter(builtin_plugins.model_sources.demo.__path__))) / "model"
ADDED = "<|not flagged|>", " with a space"


@cache
def byte_level() -> FastTokenizer:
    return FastTokenizer(FOLDER / "tokenizer.json", read_settings(FOLDER))


@cache
def with_added(folder: Path) -> FastTokenizer:
    """Return one with additional non-special added tokens."""
    inner = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    inner.add_tokens([tokenizers.AddedToken(text, special=False) for text in ADDED])
    inner.save(str(folder / "tokenizer.json"))
    return FastTokenizer(folder / "tokenizer.json", read_settings(FOLDER))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizer")


@given(st.data(), st.booleans())
def test_detokenized_text_equals_library(folder: Path, data: st.DataObject, skip: bool) -> None:
    tokenizer = with_added(folder)
    one = st.integers(0, tokenizer.vocab_size + 3) | st.sampled_from(sorted(tokenizer.special_ids))
    ids = data.draw(
        st.lists(one | st.integers(tokenizer.vocab_size - 6, tokenizer.vocab_size - 1), max_size=40)
    )
    detokenizer = make_detokenizer(tokenizer, [], skip)
    assert isinstance(detokenizer, ByteDetokenizer)
    texts = []
    start = 0
    while start < len(ids):
        end = start + data.draw(st.integers(1, 5))
        texts.append(detokenizer.append(ids[start:end]))
        start = end
    texts.append(detokenizer.flush())
    whole = "".join(texts)
    assert whole == tokenizer.decode(ids, skip)
    assert detokenizer.num_chars == len(whole)
    spelled = [
        token for token in ids if token in tokenizer.special_ids and tokenizer.token_text(token)
    ]
    assert [whole[a:b] for a, b in detokenizer.spans] == (
        [] if skip else [tokenizer.token_text(t) for t in spelled]
    )


@given(st.text(max_size=20), st.text(min_size=1, max_size=20), st.integers(0, 60))
@example("0", "<|endoftext|>", 0)
@example("a<|endoftext|>", "\N{GRINNING FACE}<|im_end|>b", 3)
def test_detokenizer_continues_partial_character_of_prompt(
    before: str, after: str, at: int
) -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode(before + after, add_special_tokens=False)
    prompt = ids[: at % (len(ids) + 1)]
    rest = ids[at % (len(ids) + 1) :]
    detokenizer = make_detokenizer(tokenizer, prompt, True)
    text_out = detokenizer.append(rest) + detokenizer.flush()
    whole = tokenizer.decode(ids, True)  # without special tokens that the texts spell
    assert whole.endswith(text_out)
    assert len(text_out) >= len(whole) - len(tokenizer.decode(prompt, True))


def test_non_bytelevel_decoders_decode_each_time(tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    inner.decoder = tokenizers.decoders.Metaspace()
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = FastTokenizer(tmp_path / "tokenizer.json", read_settings(FOLDER))
    assert tokenizer.joined_bytes(True) is None
    assert not isinstance(make_detokenizer(tokenizer, [], True), ByteDetokenizer)
