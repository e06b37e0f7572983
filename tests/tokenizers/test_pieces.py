"""Text under way from the tokens' bytes equals what the tokenizers library makes of all tokens at
once.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

import builtin_plugins.model_sources.demo
from builtin_plugins.tokenizers.hf.fast import FastTokenizer
from builtin_plugins.tokenizers.hf.settings import read_settings
from core.text.detokenizer import ByteDetokenizer, detokenizer_of

FOLDER = Path(next(iter(builtin_plugins.model_sources.demo.__path__))) / "model"
ADDED = "<|not flagged|>", " with a space"


@cache
def byte_level() -> FastTokenizer:
    return FastTokenizer(FOLDER / "tokenizer.json", read_settings(FOLDER))


@cache
def with_added(folder: Path) -> FastTokenizer:
    """Return one that also has tokens which are added as they are, and not special."""
    inner = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    inner.add_tokens([tokenizers.AddedToken(text, special=False) for text in ADDED])
    inner.save(str(folder / "tokenizer.json"))
    return FastTokenizer(folder / "tokenizer.json", read_settings(FOLDER))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizer")


@given(st.data(), st.booleans())
def test_joined_text_is_that_of_the_library(folder: Path, data: st.DataObject, skip: bool) -> None:
    tokenizer = with_added(folder)
    one = st.integers(0, tokenizer.vocab_size + 3) | st.sampled_from(sorted(tokenizer.special_ids))
    ids = data.draw(
        st.lists(one | st.integers(tokenizer.vocab_size - 6, tokenizer.vocab_size - 1), max_size=40)
    )
    detokenizer = detokenizer_of(tokenizer, [], skip)
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
def test_a_prompt_that_ends_within_a_character_is_gone_on_with(
    before: str, after: str, at: int
) -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode(before + after, add_special_tokens=False)
    prompt = ids[: at % (len(ids) + 1)]
    rest = ids[at % (len(ids) + 1) :]
    detokenizer = detokenizer_of(tokenizer, prompt, True)
    said = detokenizer.append(rest) + detokenizer.flush()
    assert (before + after).endswith(said)
    assert len(said) >= len(before + after) - len(tokenizer.decode(prompt))


def test_decoders_that_do_more_than_join_are_asked_each_time(tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    inner.decoder = tokenizers.decoders.Metaspace()
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = FastTokenizer(tmp_path / "tokenizer.json", read_settings(FOLDER))
    assert tokenizer.joined_bytes(True) is None
    assert not isinstance(detokenizer_of(tokenizer, [], True), ByteDetokenizer)
