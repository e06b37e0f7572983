"""The tokenizer equals transformers, without importing transformers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from builtin_plugins.tokenizers.hf.fast import FastTokenizer
from builtin_plugins.tokenizers.hf.loading import load_tokenizer
from core.config import EngineConfig
from core.config.sections import ModelConfig
from core.contracts.models import ModelSource
from core.errors import ModelError
from core.testing.checkpoints import CHAT_TEMPLATE, VOCAB, write_tokenizer

TEXTS = [
    "",
    "hello there",
    "the  inner\n\ttext",
    "größer 漢字 🙂",
    "<|im_start|>user\nhi<|im_end|>",
    "a" * 300,
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return tmp_path


def open_tokenizer(folder: Path | None, **model: Any) -> Any:
    source = ModelSource("m", "A", None, path=None if folder is None else str(folder))
    return load_tokenizer(source, EngineConfig(ModelConfig("m", **model)))


def set_field(folder: Path, **fields: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_model_without_tokenizer_files_has_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert open_tokenizer(tmp_path) is None


@pytest.mark.parametrize("text", TEXTS)
def test_encode_and_decode_equal_transformers(folder: Path, text: str) -> None:
    ours = open_tokenizer(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ids = ours.encode(text)
    assert isinstance(ours, FastTokenizer)
    assert ids == theirs.encode(text)
    assert ours.decode(ids) == text
    assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(
        ids, skip_special_tokens=True
    )


def test_tokenizer_attributes(folder: Path) -> None:
    tokenizer = open_tokenizer(folder)
    assert tokenizer.vocab_size == VOCAB
    assert tokenizer.eos_token_id == VOCAB - 1
    assert tokenizer.special_ids == {VOCAB - 3, VOCAB - 2, VOCAB - 1}
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert tokenizer.token_text(VOCAB - 1) == "<|im_end|>"
    assert tokenizer.token_text(10**6) == ""
    assert tokenizer.special_tokens_map["bos_token"] == "<|endoftext|>"


def test_incomplete_utf8_decodes_to_replacement_character(folder: Path) -> None:
    tokenizer = open_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode("🙂")[:-1]).endswith("\N{REPLACEMENT CHARACTER}")


def test_chat_template_file_overrides_config(folder: Path) -> None:
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "from json"}))
    assert open_tokenizer(folder).chat_template == "from json"
    (folder / "chat_template.jinja").write_text("from jinja")
    assert open_tokenizer(folder).chat_template == "from jinja"


def test_response_template_is_passed_on(folder: Path) -> None:
    assert open_tokenizer(folder).response_template is None
    set_field(folder, response_template={"fields": {}})
    assert open_tokenizer(folder).response_template == {"fields": {}}
    set_field(folder, response_template="none")
    assert open_tokenizer(folder).response_template is None


def test_named_chat_templates_are_read(folder: Path) -> None:
    set_field(
        folder,
        chat_template=[{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}],
    )
    assert open_tokenizer(folder).chat_template == {"tool_use": "t", "default": "d"}
    (folder / "chat_template.jinja").write_text("of its own")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("r")
    assert open_tokenizer(folder).chat_template == {"default": "of its own", "rag": "r"}


def test_add_bos_token_overrides_tokenizer_json(folder: Path) -> None:
    plain = open_tokenizer(folder).encode("hi")
    set_field(folder, add_bos_token=True)
    tokenizer = open_tokenizer(folder)
    assert tokenizer.encode("hi") == [VOCAB - 3, *plain]
    assert tokenizer.encode("hi", add_special_tokens=False) == plain


def test_tokenizer_flag_selects_tokenizer(folder: Path) -> None:
    assert open_tokenizer(None, tokenizer=str(folder)).vocab_size == VOCAB


def test_transformers_loads_tokenizer_without_tokenizer_json(tmp_path: Path) -> None:
    letters = sorted({chr(c) for c in range(33, 127)} | {"Ġ"})
    vocab = {letter: index for index, letter in enumerate([*letters, "<|endoftext|>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer"})
    )
    tokenizer = open_tokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode("ab c")) == "ab c"
    assert tokenizer.eos_token_id == vocab["<|endoftext|>"]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("tokenizer.json", "{}", "tokenizer.json is no tokenizer that can be read"),
        ("tokenizer_config.json", "{", "tokenizer_config.json cannot be read as JSON"),
        ("tokenizer_config.json", "[]", "holds no JSON object"),
    ],
)
def test_broken_tokenizer_files_are_reported(
    folder: Path, file: str, text: str, message: str
) -> None:
    (folder / file).write_text(text)
    with pytest.raises(ModelError, match=message):
        open_tokenizer(folder)


def test_unreadable_tokenizer_error_names_remedy(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--skip-tokenizer-init"):
        open_tokenizer(None)
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(ModelError, match="--skip-tokenizer-init"):
        open_tokenizer(tmp_path)


def sized(folder: Path, size: int) -> ModelSource:
    return ModelSource("m", "A", SimpleNamespace(vocab_size=size), path=str(folder))


def test_tokenizer_larger_than_model_vocabulary_is_rejected(folder: Path) -> None:
    with pytest.raises(
        ModelError, match=r"tokenizer.json has \d+ tokens, and the model an embedding for 100 "
    ):
        load_tokenizer(sized(folder, 100), EngineConfig(ModelConfig("m")))


def test_added_tokens_beyond_the_model_are_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_tokenizer(sized(folder, VOCAB - 1), EngineConfig(ModelConfig("m"))) is not None
    assert "the last ones cannot be used" in caplog.text


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.jinja"])
def test_byte_order_mark_of_a_file_is_skipped(folder: Path, file: str) -> None:
    path = folder / file
    path.write_bytes(b"\xef\xbb\xbf" + (path.read_bytes() if path.exists() else b"{{ 1 }}"))
    tokenizer = open_tokenizer(folder)
    assert tokenizer.chat_template == ("{{ 1 }}" if file.endswith("jinja") else CHAT_TEMPLATE)
