"""Model sources: what a file describes, user overrides, and rejected inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest
from engine_gguf import files
from engine_gguf.files import find_file, model_files
from engine_gguf.source import find

from builtin_plugins.commands.api import memory_plan
from core import LLM
from core.api import ModelError
from core.config.build import config_from_kwargs
from core.plugin import load_plan, make_plan

Made = Callable[..., tuple[Path, Path]]


@cache
def registry() -> Any:
    return load_plan(make_plan([]))


def config_of(path: Path, **settings: Any) -> Any:
    return config_from_kwargs(
        {"model": str(path), "max_model_len": 64, **settings}, registry().options()
    )


def file_of(made: Made) -> Path:
    return made("LlamaForCausalLM", "Q8_0", tie_word_embeddings=True)[0]


def test_memory_plan_counts_block_bytes(made: Made) -> None:
    small, plain = made("LlamaForCausalLM", "Q8_0", tie_word_embeddings=True)
    own, other = (
        sum(memory_plan(config_of(path, dtype="bfloat16"), registry()).weight_bytes)
        for path in (small, plain)
    )
    assert 0.5 < own / other < 0.6


def test_hf_config_path_describes_the_model(made: Made, tmp_path: Path) -> None:
    path, plain = made("LlamaForCausalLM", "Q8_0", tie_word_embeddings=True)
    stated = json.loads((plain / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**stated, "max_position_embeddings": 77}))
    assert find(str(path), config_of(path, hf_config_path=str(tmp_path))).max_model_len == 77
    with pytest.raises(ModelError, match=r"--hf-config-path: .* does not describe a model"):
        find(str(path), config_of(path, hf_config_path=str(tmp_path / "none")))


def test_hf_overrides_apply_to_settings(made: Made) -> None:
    path = file_of(made)
    source = find(str(path), config_of(path, hf_overrides={"rms_norm_eps": 0.5}))
    assert source.hf_config.rms_norm_eps == 0.5


def test_other_quantization_method_is_rejected(made: Made) -> None:
    with pytest.raises(
        ModelError,
        match="--quantization int8 ",
    ):
        LLM(str(file_of(made)), quantization="int8", max_model_len=64, log_level="error")


def test_config_of_another_model_is_rejected(made: Made, tmp_path: Path) -> None:
    path, plain = made("LlamaForCausalLM", "Q8_0", tie_word_embeddings=True)
    stated = json.loads((plain / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**stated, "intermediate_size": 256}))
    with pytest.raises(ModelError, match=r"ffn|mlp.*got shape"):
        LLM(str(path), hf_config_path=str(tmp_path), max_model_len=64, log_level="error")


def test_unsupported_architecture_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "qwen9")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="'qwen9' is not supported in GGUF files; did you mean"):
        find(str(tmp_path / "a.gguf"), config_of(tmp_path / "a.gguf"))


def test_any_split_finds_all_splits(tmp_path: Path) -> None:
    names = [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in model_files(tmp_path / names[1])] == names
    (tmp_path / names[2]).unlink()
    with pytest.raises(ModelError, match=f"are missing: {names[2]}"):
        model_files(tmp_path / names[0])


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("m.Q4_K_M.gguf", "m.Q4_K_M.gguf"),
        (":Q4_K_M", "m.Q4_K_M.gguf"),
        (":q8_0", "m-Q8_0.gguf"),
        (":Q6_K", "m-Q6_K-00001-of-00002.gguf"),
        (
            ":Q4_K",
            "got 0 GGUF files of type Q4_K; expected one. Found: m-Q6_K-00001-of-00002.gguf, ",
        ),
        ("", "got 3 GGUF files; expected one"),
    ],
)
def test_model_argument_selects_the_file(given: str, found: str, tmp_path: Path) -> None:
    for name in (
        "m.Q4_K_M",
        "m-Q8_0",
        "m-Q6_K-00001-of-00002",
        "m-Q6_K-00002-of-00002",
        "mmproj-m-Q8_0",
    ):
        (tmp_path / f"{name}.gguf").touch()
    model = f"{tmp_path}{given}" if given.startswith(":") or not given else str(tmp_path / given)
    config = config_from_kwargs({"model": model})
    if " " not in found:
        assert find_file(model, config) == tmp_path / found
        return
    with pytest.raises(ModelError, match=found):
        find_file(model, config)


def test_hub_names_with_a_type_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x-Q4_0.gguf").touch()
    fetches: list[tuple[str, set[str]]] = []

    def fetched(name: str, config: Any, patterns: list[str]) -> Path:
        fetches.append((name, set(patterns)))
        return tmp_path

    monkeypatch.setattr(files, "download", fetched)
    config = config_from_kwargs({"model": "owner/x-GGUF:q4_0"})
    assert find_file("owner/x-GGUF:q4_0", config) == tmp_path / "x-Q4_0.gguf"
    assert fetches == [("owner/x-GGUF", {"*q4_0*.gguf", "*Q4_0*.gguf"})]
    (tmp_path / "config.json").touch()
    assert all(
        find_file(name, config) is None for name in ("owner/x", "demo", "a:b", str(tmp_path))
    )
