"""Well-formed but invalid settings: tokenizers, sizes of other models, inconsistent splits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from engine_gguf.files import read_headers
from engine_gguf.header import Header
from engine_gguf.settings import Settings
from engine_gguf.source import find
from engine_gguf.tokenizer import tokenizer_files
from tokenizers import Tokenizer

from core.api import ModelError
from core.config.build import config_from_kwargs

Made = Callable[..., tuple[Path, Path]]
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ab"]
COUNT = len(TOKENS)


def stated(kind: str, **changed: Any) -> Settings:
    """Return the settings of a tokenizer, with changes."""
    common = {
        "model": kind,
        "tokens": TOKENS,
        "scores": np.zeros(COUNT, np.float32),
        "merges": ["a b"],
        "token_type": np.array([2, 3, 3, *[6] * 256, 1, 1, 1, 1], np.int32),
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    named = {
        f"tokenizer.ggml.{name}": value
        for name, value in {**common, **changed}.items()
        if value is not None
    }
    return Settings(Header(Path("a.gguf"), {"general.architecture": "llama", **named}, ()))


REFUSED = {
    "no tokens": ("gpt2", {"tokens": None}, "tokens': got no value"),
    "tokens that are numbers": ("llama", {"tokens": np.zeros(4)}, "expected a list of strings"),
    "types of other tokens": (
        "gpt2",
        {"token_type": np.zeros(3, np.int32)},
        f"a list of {COUNT} numbers",
    ),
    "scores of other tokens": (
        "llama",
        {"scores": np.zeros(3, np.float32)},
        f"a list of {COUNT} numbers",
    ),
    "no scores": ("llama", {"scores": None}, "tokenizer.ggml.scores is missing"),
    "a beginning that there is not": (
        "llama",
        {"bos_token_id": COUNT},
        f"one of the {COUNT} tokens",
    ),
    "an end that is no number": ("gpt2", {"eos_token_id": "2"}, f"one of the {COUNT} tokens"),
    "merges of others": (
        "gpt2",
        {"merges": ["x y"]},
        "1 of its tokenizer's 1 merges have unknown tokens",
    ),
    "half a merge": (
        "gpt2",
        {"merges": ["ab"]},
        "1 of its tokenizer's 1 merges have unknown tokens",
    ),
    "merges that are numbers": ("gpt2", {"merges": np.zeros(2)}, "expected a list of strings"),
    "unknown pre-tokenizer": ("gpt2", {"pre": "(a+)+$"}, "tokenizer.ggml.pre: got"),
    "pre-tokenizer of another type": ("gpt2", {"pre": 7}, "expected a string"),
    "another kind": ("plamo2", {}, "tokenizer.ggml.model: got 'plamo2'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_tokenizer_is_rejected_with_reason(name: str) -> None:
    kind, changed, wrong = REFUSED[name]
    with pytest.raises(ModelError, match=wrong) as caught:
        tokenizer_files(stated(kind, **changed))
    assert len(str(caught.value)) < 1000


ODD = {
    "scores that are no numbers": ("llama", {"scores": np.full(COUNT, np.nan, np.float32)}),
    "types that there are not": ("llama", {"token_type": np.full(COUNT, -(2**31), np.int32)}),
    "all of them control tokens": ("gpt2", {"token_type": np.full(COUNT, 3, np.int32)}),
    "the same token everywhere": ("llama", {"tokens": ["a"] * COUNT}),
    "empty tokens": ("gpt2", {"tokens": [""] * COUNT, "merges": []}),
    "tokens of odd letters": (
        "gpt2",
        {"tokens": [*TOKENS[:-1], "\0\ufffd\U0010ffff"], "merges": []},
    ),
    "a template that is a number": ("gpt2", {"chat_template": 3}),
}


@pytest.mark.parametrize("name", ODD)
def test_unusual_tokenizer_is_accepted(name: str) -> None:
    kind, changed = ODD[name]
    files = tokenizer_files(stated(kind, **changed))
    tokenizer = Tokenizer.from_str(json.dumps(files["tokenizer.json"]))
    assert all(0 <= token < COUNT for token in tokenizer.encode("ab </s> ab").ids)


def written(path: Path, number: int, count: int, names: list[str]) -> Path:
    """Write a file that states a split number and count."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint16("split.no", number)
    writer.add_uint16("split.count", count)
    for name in names:
        writer.add_tensor(name, np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("second", "names", "wrong"),
    [
        ((1, 2), ["b"], None),
        ((0, 2), ["b"], "states split 0 of 2"),
        ((1, 3), ["b"], "states split 1 of 3"),
        ((1, 2), ["a"], "have the tensor 'a' twice"),
    ],
)
def test_inconsistent_splits_are_rejected(
    second: tuple[int, int], names: list[str], wrong: str | None, tmp_path: Path
) -> None:
    first = written(tmp_path / "m-00001-of-00002.gguf", 0, 2, ["a"])
    written(tmp_path / "m-00002-of-00002.gguf", *second, names)
    if wrong is None:
        assert [tensor.name for header in read_headers(first) for tensor in header.tensors] == [
            "a",
            "b",
        ]
        return
    with pytest.raises(ModelError, match=wrong):
        read_headers(first)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_count", 2**31),
        ("embedding_length", 2**31),
        ("attention.head_count", 0),
        ("attention.head_count_kv", 2**40),
        ("feed_forward_length", "wide"),
        ("rope.freq_base", float("nan")),
        ("attention.layer_norm_rms_epsilon", float("inf")),
        ("context_length", -1),
        ("attention.sliding_window", -4),
        ("nextn_predict_layers", 2**31),
    ],
)
def test_invalid_sizes_are_rejected(
    field: str, value: Any, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = made("LlamaForCausalLM", "Q8_0", tie_word_embeddings=True)
    own = Settings.own
    monkeypatch.setattr(
        Settings, "own", lambda self, name: value if name == field else own(self, name)
    )
    config: Any = config_from_kwargs({"model": str(path)})
    with pytest.raises(ModelError, match=r"llama\.|its settings state"):
        find(str(path), config)
