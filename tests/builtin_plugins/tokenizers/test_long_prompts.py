"""Partial tokenization of long texts equals full tokenization, with tokenizers of every kind."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from builtin_plugins.tokenizers import chunked as chunked_tokenizer
from builtin_plugins.tokenizers.chunked import Abandoned, ChunkedTokenizer
from builtin_plugins.tokenizers.hf import fast
from builtin_plugins.tokenizers.hf.fast import FastTokenizer
from builtin_plugins.tokenizers.hf.settings import TokenizerSettings, read_settings
from core.errors import InvalidRequest
from core.frontend.text.rendering import Renderer
from core.testing.byte_tokenizer import ByteTokenizer

DEMO = Path(__file__).parents[3] / "builtin_plugins/model_sources/demo/model"
LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXT = (
    "the quick brown fox, jumps over 12345 lazy dogs' é größer ÄÖ naïve "
    "e\u0301a 漢字 かな 한국 привет мир 🙂 ... x_y"
)
WORDS = [*TEXT.split(), "don't\u00a0so"]
SPACES = [" "] * 12 + ["\n", "\n\n", "  ", " \n", "\t", "\r\n", "", "\n  ", "\u3000"]


def some_text(seed: int, length: int) -> str:
    rng = random.Random(seed)
    parts: list[str] = []
    while sum(map(len, parts)) < length:
        for _ in range(50):
            parts += [rng.choice(WORDS), rng.choice(SPACES)]
        parts.append(rng.choice(["<|im_end|>", "[tok]", "word", " " * 30, "\n" * 7, "a" * 300, ""]))
    return "".join(parts)


def byte_level(pre: pre_tokenizers.PreTokenizer) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        [some_text(0, 20_000)],
        trainers.BpeTrainer(
            vocab_size=600,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|im_end|>"],
            show_progress=False,
        ),
    )
    return made


def gpt2() -> tokenizers.Tokenizer:
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))


def llama3() -> tokenizers.Tokenizer:
    split = pre_tokenizers.Split(Regex(LLAMA), "isolated")
    made = byte_level(
        pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    )
    made.normalizer = normalizers.NFC()
    made.post_processor = processors.TemplateProcessing(
        "<|im_end|> $A <|im_end|>", special_tokens=[("<|im_end|>", 0)]
    )
    return made


def sentencepiece() -> tokenizers.Tokenizer:
    """No pre-tokenizer: the text is one word."""
    made = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    lines = some_text(0, 20_000).split()
    made.train_from_iterator(
        lines,
        trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=["<unk>", "<s>", *(f"<0x{i:02X}>" for i in range(256))],
            show_progress=False,
        ),
    )
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return made


def unigram() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator([some_text(0, 20_000)], trainer)
    return made


def wordpiece() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=40))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]"]
    made.train_from_iterator(
        [some_text(0, 20_000)],
        trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False),
    )
    made.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return made


def hungry() -> tokenizers.Tokenizer:
    """Added tokens that absorb adjacent spaces, one of them a word."""
    made = gpt2()
    made.add_tokens(
        [
            AddedToken("[tok]", lstrip=True, rstrip=True),
            AddedToken("word", lstrip=True, rstrip=True),
        ]
    )
    return made


def without_spaces() -> tokenizers.Tokenizer:
    """Removes spaces first, so tokens cross words."""
    made = tokenizers.Tokenizer(models.BPE())
    made.normalizer = normalizers.Replace(" ", "")
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train_from_iterator(
        [some_text(0, 20_000)],
        trainers.BpeTrainer(
            vocab_size=600,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return made


def over_words() -> tokenizers.Tokenizer:
    """Tokens reach across words."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.train_from_iterator(
        ["the quick brown fox " * 50, some_text(0, 2000)],
        trainers.BpeTrainer(
            vocab_size=500,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return made


def in_lengths() -> tokenizers.Tokenizer:
    """Cut into fives from the text's beginning on."""
    made = gpt2()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[\s\S]{5}"), "isolated"),
            pre_tokenizers.ByteLevel(use_regex=False),
        ]
    )
    return made


def demo() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))


KINDS = [demo, gpt2, llama3, sentencepiece, unigram, wordpiece, hungry]
WITHOUT = [without_spaces, over_words, in_lengths]


@pytest.fixture(scope="module")
def opened(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Callable[[], tokenizers.Tokenizer]], FastTokenizer]:
    @cache
    def read(make: Callable[[], tokenizers.Tokenizer]) -> FastTokenizer:
        path = tmp_path_factory.mktemp(make.__name__) / "tokenizer.json"
        make().save(str(path))
        return FastTokenizer(path, read_settings(DEMO) if make is demo else TokenizerSettings())

    return read


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets small chunks, so a test's texts have many."""
    monkeypatch.setattr(chunked_tokenizer, "CHUNK_CHARS", 200)
    monkeypatch.setattr(chunked_tokenizer, "MIN_CHARS", 60)
    monkeypatch.setattr(chunked_tokenizer, "RUN_CHARS", 3000)


def never() -> bool:
    return False


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("special", [False, True])
def test_tail_of_long_text_equals_full_tokenization(opened, make, special):
    tokenizer = opened(make)
    assert tokenizer.split_points is not None
    reader = ChunkedTokenizer(tokenizer)
    for seed in range(12):
        text = some_text(seed, 6000)[seed:]
        whole = tokenizer.encode(text, special)
        for keep in (1, 2, 7, 100, 777, len(whole) - 1, len(whole), len(whole) + 5):
            assert reader.encode_end(text, special, keep, never)[-keep:] == whole[-keep:]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("special", [False, True])
def test_chunked_tokenization_equals_full(opened, make, special):
    tokenizer = opened(make)
    for seed in range(12):
        text = some_text(100 + seed, 6000)[seed:]
        assert ChunkedTokenizer(tokenizer).encode(text, special, 10**6, never) == tokenizer.encode(
            text, special
        )


@pytest.mark.parametrize("make", KINDS)
def test_truncated_encoding_is_prefix_of_full(opened, make, monkeypatch):
    tokenizer = opened(make)
    for seed in range(8):
        text = some_text(200 + seed, 6000)[seed:]
        for limit in (3, 50, 400, 10**5):
            monkeypatch.setattr(fast, "LONG_CHARS", 10**9)
            whole = tokenizer.encode_fitted(text, None, limit)
            monkeypatch.setattr(fast, "LONG_CHARS", 300)
            assert tokenizer.encode_fitted(text, None, limit) == whole


@pytest.mark.parametrize("make", WITHOUT)
def test_tokenizer_without_split_points_is_never_split(opened, make):
    tokenizer = opened(make)
    joints = tokenizer.split_points
    assert joints is None or not re.search(joints, "a b")
    num_read = 0
    for seed in range(6):
        text = some_text(seed, 9000)[seed:]
        whole = tokenizer.encode(text)
        try:
            found = ChunkedTokenizer(tokenizer).encode_end(text, True, 5, never)
        except InvalidRequest as error:
            assert "without a word's end" in str(error)  # noqa: PT017
        else:
            num_read += 1
            assert found[-5:] == whole[-5:]
    assert num_read or make is in_lengths


class Counting:
    """Counts the characters a tokenizer reads."""

    def __init__(self, inner: FastTokenizer) -> None:
        self.inner = inner
        self.split_points = inner.split_points
        self.read = 0
        self.longest = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def long_texts(self) -> ChunkedTokenizer:
        return ChunkedTokenizer(self)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.read += len(text)
        self.longest = max(self.longest, len(text))
        return self.inner.encode(text, add_special_tokens)


def test_long_text_is_tokenized_only_as_needed(opened):
    tokenizer = Counting(opened(llama3))
    text = some_text(1, 40_000)
    assert (
        Renderer(tokenizer, None).encode(text, max_tokens=100, keep=10)[-10:]
        == tokenizer.inner.encode(text)[-10:]
    )
    assert tokenizer.read < 2000
    tokenizer.read = 0
    with pytest.raises(InvalidRequest, match="Shorten it, or set truncate_prompt_tokens"):
        Renderer(tokenizer, None).encode(text, max_tokens=100)
    assert tokenizer.read < 2000


def test_tokenizer_chunks_are_bounded(opened):
    tokenizer = Counting(opened(llama3))
    for text in ("a" * 30_000, " " * 30_000, "\n" * 30_000, "ab " * 10_000, "漢" * 30_000):
        for keep in (None, 10):
            with contextlib.suppress(InvalidRequest):
                Renderer(tokenizer, None).encode(text, max_tokens=5000, keep=keep)
    assert tokenizer.longest <= 4 * 3000


def test_client_disconnect_aborts_tokenization(opened):
    tokenizer = Counting(opened(llama3))
    text = some_text(1, 40_000)
    requested = [False, False, True]
    with pytest.raises(Abandoned):
        ChunkedTokenizer(tokenizer).encode(text, True, 10**6, lambda: requested.pop(0))
    assert tokenizer.read < 1500


def test_repeated_letter_is_not_a_split_point(opened):
    """In `aaa...` every split looks equal: results are exact, or the text is rejected."""
    tokenizer = opened(over_words)
    text = "a" * 30_001
    try:
        found = ChunkedTokenizer(tokenizer).encode_end(text, False, 5, never)
    except InvalidRequest:
        return
    assert found[-5:] == tokenizer.encode(text, False)[-5:]


def test_short_texts_are_tokenized_at_once():
    assert Renderer(ByteTokenizer(), None).encode("abc", max_tokens=10, keep=1) == [97, 98, 99]
    assert Renderer(ByteTokenizer(), None).encode("abc" * 500, max_tokens=10, keep=1)[-1:] == [99]
