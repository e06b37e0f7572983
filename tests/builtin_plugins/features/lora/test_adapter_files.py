"""Adapter files: valid ones are read, invalid ones are rejected with a named reason."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from builtin_plugins.features.lora.adapter_file import CONFIG, WEIGHTS, AdapterFiles, BadAdapter
from builtin_plugins.features.lora.peft import PeftConfig, parse_tensor_name
from builtin_plugins.features.lora.settings import LoraModule, Settings, read_module
from core.api import ConfigError, EngineConfig
from core.config.sections import SchedulerConfig

PLAIN: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
MAX_BYTES = 1 << 30


def write(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(PLAIN | config))
    return folder


def test_digest_covers_config_and_weights(tmp_path: Path) -> None:
    ones = {"a": torch.ones(3, 4), "b": torch.ones(2, dtype=torch.bfloat16)}
    folder = write(tmp_path / "one", ones)
    tensors: dict[str, Any] = {}
    first = AdapterFiles.read(folder, MAX_BYTES).digest(tensors)
    assert tensors["b"].view("int16").tolist() == [0x3F80] * 2
    assert AdapterFiles.read(write(tmp_path / "again", ones), MAX_BYTES).digest() == first
    assert (
        AdapterFiles.read(write(tmp_path / "other", ones, lora_alpha=9), MAX_BYTES).digest()
        != first
    )
    ones["a"][2, 3] = 2
    assert AdapterFiles.read(write(tmp_path / "one", ones), MAX_BYTES).digest() != first


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_numbers_are_rejected(tmp_path: Path, dtype: torch.dtype, value: float) -> None:
    numbers = torch.full((700, 3), 1.0, dtype=dtype)
    folder = write(tmp_path, {"good": numbers.clone(), "odd": numbers})
    AdapterFiles.read(folder, MAX_BYTES).digest()
    numbers[699, 2] = value
    files = AdapterFiles.read(write(tmp_path, {"good": torch.ones(3), "odd": numbers}), MAX_BYTES)
    with pytest.raises(BadAdapter, match="'odd' has numbers that are not finite"):
        files.digest()


def broken(folder: Path, what: str) -> None:
    """Break an adapter in one way."""
    path = folder / WEIGHTS
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    if what == "header":
        path.write_bytes(struct.pack("<Q", 1 << 30) + data[8:])
    elif what == "cut":
        path.write_bytes(data[:-4])
    elif what == "overlap":
        header["b"]["data_offsets"] = header["a"]["data_offsets"]
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(200))
    elif what == "twice":
        text = b'{"a": {}, ' + json.dumps(header).encode()[1:]
        path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(200))
    elif what == "pickle":
        path.unlink()
        (folder / "adapter_model.bin").write_bytes(b"x")
    elif what == "missing":
        path.unlink()
    elif what == "config":
        (folder / CONFIG).write_text("{")
    elif what == "long name":
        header["b" * 5000] = header.pop("b")
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(200))
    elif what.endswith(("pipe", "device", "folder")):
        path = folder / (CONFIG if what.startswith("config") else WEIGHTS)
        path.unlink()
        if what.endswith("pipe"):
            os.mkfifo(path)
        elif what.endswith("device"):
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()
    else:
        (folder / CONFIG).unlink()


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("header", "its header has 1073741824 bytes of"),
        ("cut", "cut off or damaged"),
        ("overlap", "the same bytes"),
        ("twice", f"{WEIGHTS} has a header that cannot be read .it names 'a' twice"),
        ("pickle", "is a pickle, which may run any code"),
        ("missing", f"{WEIGHTS} is missing"),
        ("config", "expected JSON"),
        ("no config", "no LoRA adapter found"),
        ("config pipe", f"{CONFIG} cannot be read .expected a regular file"),
        ("weights pipe", f"{WEIGHTS} cannot be read: expected a regular file"),
        ("config device", f"{CONFIG} cannot be read .expected a regular file"),
        ("weights folder", f"{WEIGHTS} cannot be read: expected a regular file"),
        ("long name", "got a name of 5000 characters"),
    ],
)
def test_broken_files_are_rejected(tmp_path: Path, what: str, text: str) -> None:
    folder = write(tmp_path, {"a": torch.ones(4), "b": torch.ones(4)})
    broken(folder, what)
    with pytest.raises(BadAdapter, match=text) as found:
        AdapterFiles.read(folder, MAX_BYTES)
    assert str(tmp_path) not in str(found.value), "clients read this message"


def test_files_over_the_size_limit_are_rejected(tmp_path: Path) -> None:
    folder = write(tmp_path, {"a": torch.ones(4096)})
    with pytest.raises(BadAdapter, match="--max-lora-bytes allows 1000"):
        AdapterFiles.read(folder, 1000)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"peft_type": "IA3"}, "peft_type: got 'IA3'; expected LORA"),
        ({"use_dora": True}, "use_dora is not supported"),
        (
            {"use_rslorra": True},
            "'use_rslorra' of adapter_config.json is unknown; did you mean 'use_rslora'",
        ),
        ({"r": 0}, "expected an integer rank"),
        ({"lora_alpha": "8"}, "expected a finite number"),
        ({"lora_alpha": 10**400}, "expected a finite number"),
        ({"alpha_pattern": {"q_proj": float("nan")}}, "expected a finite number"),
        (
            {"layers_to_transform": "all"},
            "layers_to_transform: got 'all'; expected a list of integers",
        ),
        ({"layers_to_transform": [0, None]}, "expected a list of integers"),
        ({"bias": "some"}, "expected none, all or lora_only"),
        ({"rank_pattern": {"q_proj": True}}, "expected an integer rank"),
        ({"layer_replication": [[0, 1]]}, "layer_replication is not supported"),
        ({"modules_to_save": 3}, "expected a list of names"),
    ],
)
def test_unsupported_config_fields_are_named(config: dict[str, Any], text: str) -> None:
    with pytest.raises(BadAdapter, match=text):
        PeftConfig.parse(PLAIN | config)


def test_ranks_scales_and_targets_match_peft() -> None:
    config = PeftConfig.parse(
        PLAIN
        | {
            "rank_pattern": {"k_proj": 2, r".*\.1\.self_attn\.q_proj": 16},
            "alpha_pattern": {"k_proj": 3},
        }
    )
    q0, q1, k = (
        f"model.layers.{i}.self_attn.{n}" for i, n in ((0, "q_proj"), (1, "q_proj"), (0, "k_proj"))
    )
    assert [config.rank_of(name) for name in (q0, q1, k)] == [4, 16, 2]
    assert [config.scale_of(name) for name in (q0, q1, k)] == [2.0, 0.5, 1.5]
    assert config.max_rank == 16
    assert PeftConfig.parse(PLAIN | {"use_rslora": True}).scale_of(q0) == 4.0
    assert [config.targets_module(name) for name in (q0, k)] == [True, False]
    assert PeftConfig.parse(PLAIN | {"target_modules": "all-linear"}).targets_module(k)
    regex = PeftConfig.parse(
        PLAIN | {"target_modules": r".*layers\.0.*(q|k)_proj", "layers_to_transform": [0]}
    )
    assert [regex.targets_module(name) for name in (q0, q1, k)] == [True, False, True]


@pytest.mark.parametrize("field", ["rank_pattern", "alpha_pattern", "target_modules"])
@pytest.mark.parametrize("text", ["(a+)+b", "(a|a)*b", "(.*)*b", "((a{0,50}){0,50}){0,50}b"])
def test_patterns_match_long_names_in_bounded_time(field: str, text: str) -> None:
    value = text if field == "target_modules" else {text: 2}
    config = PeftConfig.parse(PLAIN | {field: value})
    before_s = time.process_time()
    name = "a" * 60
    assert config.rank_of(name) == 4
    assert config.scale_of(name) == 2.0
    assert not (field == "target_modules" and config.targets_module(name))
    assert time.process_time() - before_s < 10, "backtracking takes hours"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({f"(m{i})": 2 for i in range(300)}, "got 300 regular expressions; expected up to 256"),
        ({"(" + "a" * 5000 + ")": 2}, "got an expression of 50"),
        ({"(a": 2}, "rank_pattern: got '.*; expected a supported regular expression"),
        ({r"(a)\1": 2}, "expected a supported regular expression"),
    ],
)
def test_patterns_that_cost_too_much_are_named(value: dict[str, int], text: str) -> None:
    with pytest.raises(BadAdapter, match=text):
        PeftConfig.parse(PLAIN | {"rank_pattern": value}).rank_of("a" * 30)


def test_first_fitting_key_decides_among_names_and_expressions() -> None:
    keys = {"layers.1.q_proj": 3, "(q|k)_proj": 5, "q_proj": 7, "proj": 9}
    config = PeftConfig.parse(PLAIN | {"rank_pattern": keys})
    names = ("model.layers.1.q_proj", "model.layers.2.q_proj", "q_proj", "x.proj", "xproj")
    assert [config.rank_of(name) for name in names] == [3, 5, 5, 9, 4]


def test_tensor_names_give_their_roles() -> None:
    root = "base_model.model.model.layers.0.self_attn.q_proj"
    forms = {
        f"{root}.lora_A.weight": "A",
        f"{root}.lora_B.default.weight": "B",
        f"{root}.lora_B.bias": "added bias",
        f"{root}.bias": "bias",
        f"{root}.base_layer.bias": "bias",
        f"{root}.lora_embedding_A": "embedding A",
        f"{root}.modules_to_save.weight": "weight",
    }
    assert {name: parse_tensor_name(name).role for name in forms} == forms
    assert {parse_tensor_name(name).module for name in forms} == {"model.layers.0.self_attn.q_proj"}
    with pytest.raises(BadAdapter, match="belongs to DoRA"):
        parse_tensor_name(f"{root}.lora_magnitude_vector.weight")
    with pytest.raises(BadAdapter, match="expected the name of a LoRA tensor"):
        parse_tensor_name("prompt_embeddings")


def test_lora_modules_accept_both_syntaxes() -> None:
    assert read_module("sql=/adapters/sql=2") == LoraModule("sql", "/adapters/sql=2")
    text = '{"name": "sql", "path": "/a", "base_model_name": "base"}'
    assert read_module(text) == LoraModule("sql", "/a", "base")
    for bad, reason in (
        ("sql", "expected NAME=PATH or JSON"),
        ('{"name": "a"}', "expected both name and path"),
        ('{"name": "a", "pth": "b"}', "got key 'pth'; did you mean 'path'"),
        ('{"name": ', "expected JSON"),
    ):
        with pytest.raises(ConfigError, match=reason):
            read_module(bad)


def test_contradicting_settings_are_rejected() -> None:
    def settings(**options: Any) -> Settings | None:
        return Settings.of(EngineConfig(options=options))

    assert settings() is None
    assert settings(enable_lora=True, max_cpu_loras=-1, max_loras=3) == settings(
        enable_lora=True, max_loras=3
    )
    with pytest.raises(
        ConfigError, match="--max-cpu-loras: got 2; expected at least --max-loras 3"
    ):
        settings(enable_lora=True, max_loras=3, max_cpu_loras=2)
    with pytest.raises(ConfigError, match="--lora-dtype: got 'int8'; expected"):
        settings(enable_lora=True, lora_dtype="int8")
    with pytest.raises(
        ConfigError, match="Consider increasing max_num_batched_tokens or decreasing"
    ):
        Settings.of(
            EngineConfig(
                scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=32),
                options={"enable_lora": True, "speculative_config": {"num_speculative_tokens": 4}},
            )
        )
    with pytest.raises(ConfigError, match="got 'a' twice"):
        settings(lora_modules=["a=1", "a=2"])
    with pytest.raises(ConfigError, match=r"LoRA\(s\) were provided for a non multimodal model"):
        settings(default_mm_loras={"audio": "x"})
