"""What a file says of itself, what users say instead, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest
from engine_gguf.files import model_files
from engine_gguf.source import find

from core import LLM, memory_plan
from core.api import ModelError
from core.config.build import config_from_kwargs
from core.plugin import load_plan, make_plan

Made = Callable[..., tuple[Path, Path]]


@cache
def registry() -> Any:
    return load_plan(make_plan([]))


def config_of(path: Path, **settings: Any) -> Any:
    return config_from_kwargs({"model": str(path), "max_model_len": 64, **settings}, registry().options())


def file_of(made: Made) -> Path:
    return made("LlamaForCausalLM", "Q8_0", tie_word_embeddings=True)[0]


def test_a_plan_counts_the_bytes_of_blocks(made: Made) -> None:
    small, plain = made("LlamaForCausalLM", "Q8_0", tie_word_embeddings=True)
    own, other = (
        sum(memory_plan(config_of(path, dtype="bfloat16"), registry()).weight_bytes) for path in (small, plain)
    )
    assert 0.5 < own / other < 0.6


def test_a_config_that_is_given_describes_the_model(made: Made, tmp_path: Path) -> None:
    path, plain = made("LlamaForCausalLM", "Q8_0", tie_word_embeddings=True)
    stated = json.loads((plain / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**stated, "max_position_embeddings": 77}))
    assert find(str(path), config_of(path, hf_config_path=str(tmp_path))).max_model_len == 77
    with pytest.raises(ModelError, match=r"--hf-config-path: .* does not describe a model"):
        find(str(path), config_of(path, hf_config_path=str(tmp_path / "none")))


def test_overrides_are_laid_over_the_settings(made: Made) -> None:
    path = file_of(made)
    source = find(str(path), config_of(path, hf_overrides={"rms_norm_eps": 0.5}))
    assert source.hf_config.rms_norm_eps == 0.5


def test_another_method_is_refused_by_name(made: Made) -> None:
    with pytest.raises(ModelError, match="--quantization int8 rounds plain weights; it reads no others"):
        LLM(str(file_of(made)), quantization="int8", max_model_len=64, log_level="error")


def test_another_models_settings_do_not_fit(made: Made, tmp_path: Path) -> None:
    path, plain = made("LlamaForCausalLM", "Q8_0", tie_word_embeddings=True)
    stated = json.loads((plain / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**stated, "intermediate_size": 256}))
    with pytest.raises(ModelError, match=r"ffn|mlp.*has the shape"):
        LLM(str(path), hf_config_path=str(tmp_path), max_model_len=64, log_level="error")


def test_an_architecture_that_is_not_read_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "qwen9")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="'qwen9' is not read from GGUF files; did you mean"):
        find(str(tmp_path / "a.gguf"), config_of(tmp_path / "a.gguf"))


def test_splits_are_found_from_any_of_them(tmp_path: Path) -> None:
    names = [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in model_files(tmp_path / names[1])] == names
    (tmp_path / names[2]).unlink()
    with pytest.raises(ModelError, match=f"not beside it: {names[2]}"):
        model_files(tmp_path / names[0])
