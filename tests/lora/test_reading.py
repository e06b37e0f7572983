"""Adapters' files: what is read, and what is refused by name before a model sees it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from builtin_plugins.features.lora.names import meaning
from builtin_plugins.features.lora.peft import PeftConfig
from builtin_plugins.features.lora.settings import Module, Settings, read_module
from builtin_plugins.features.lora.stored import CONFIG, WEIGHTS, AdapterFiles, BadAdapter
from core.api import ConfigError, EngineConfig
from core.config.sections import SchedulerConfig

PLAIN: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
MOST = 1 << 30


def write(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(PLAIN | config))
    return folder


def test_the_hash_is_of_all_that_is_there(tmp_path: Path) -> None:
    ones = {"a": torch.ones(3, 4), "b": torch.ones(2, dtype=torch.bfloat16)}
    folder = write(tmp_path / "one", ones)
    kept: dict[str, Any] = {}
    first = AdapterFiles.of(folder, MOST).digest(kept)
    assert kept["b"].view("int16").tolist() == [0x3F80] * 2
    assert AdapterFiles.of(write(tmp_path / "again", ones), MOST).digest() == first
    assert AdapterFiles.of(write(tmp_path / "other", ones, lora_alpha=9), MOST).digest() != first
    ones["a"][2, 3] = 2
    assert AdapterFiles.of(write(tmp_path / "one", ones), MOST).digest() != first


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_found(tmp_path: Path, dtype: torch.dtype, value: float) -> None:
    numbers = torch.full((700, 3), 1.0, dtype=dtype)
    folder = write(tmp_path, {"good": numbers.clone(), "odd": numbers})
    AdapterFiles.of(folder, MOST).digest()
    numbers[699, 2] = value
    files = AdapterFiles.of(write(tmp_path, {"good": torch.ones(3), "odd": numbers}), MOST)
    with pytest.raises(BadAdapter, match="'odd' holds numbers that are not finite"):
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
    else:
        (folder / CONFIG).unlink()


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("header", "its header would take 1073741824 bytes of"),
        ("cut", "cut off or damaged"),
        ("overlap", "the same bytes"),
        ("twice", f"{WEIGHTS} has a header that cannot be read .it names 'a' twice"),
        ("pickle", "is a pickle, which may run any code"),
        ("missing", f"{WEIGHTS} is missing"),
        ("config", "is no JSON"),
        ("no config", "holds no LoRA adapter"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, what: str, text: str) -> None:
    folder = write(tmp_path, {"a": torch.ones(4), "b": torch.ones(4)})
    broken(folder, what)
    with pytest.raises(BadAdapter, match=text):
        AdapterFiles.of(folder, MOST)


def test_large_files_are_not_read(tmp_path: Path) -> None:
    folder = write(tmp_path, {"a": torch.ones(4096)})
    with pytest.raises(BadAdapter, match="--max-lora-bytes allows 1000"):
        AdapterFiles.of(folder, 1000)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"peft_type": "IA3"}, "only LORA is served"),
        ({"use_dora": True}, "use_dora is not served"),
        (
            {"use_rslorra": True},
            "'use_rslorra' of adapter_config.json is not known; did you mean 'use_rslora'",
        ),
        ({"r": 0}, "a rank is a whole number"),
        ({"lora_alpha": "8"}, "must be a number"),
        ({"lora_alpha": 10**400}, "must be a number"),
        ({"alpha_pattern": {"q_proj": float("nan")}}, "must be a number"),
        (
            {"layers_to_transform": "all"},
            "layers_to_transform must be a list of numbers, not 'all'",
        ),
        ({"layers_to_transform": [0, None]}, "must be a list of numbers"),
        ({"bias": "some"}, "must be none, all or lora_only"),
        ({"rank_pattern": {"q_proj": True}}, "a rank is a whole number"),
        ({"layer_replication": [[0, 1]]}, "layer_replication is not served"),
        ({"modules_to_save": 3}, "must be a list of names"),
    ],
)
def test_what_a_config_asks_for_and_is_not_served_is_named(
    config: dict[str, Any], text: str
) -> None:
    with pytest.raises(BadAdapter, match=text):
        PeftConfig.of(PLAIN | config)


def test_ranks_scales_and_targets_are_those_of_peft() -> None:
    config = PeftConfig.of(
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
    assert config.most_rank == 16
    assert PeftConfig.of(PLAIN | {"use_rslora": True}).scale_of(q0) == 4.0
    assert [config.wants(name) for name in (q0, k)] == [True, False]
    assert PeftConfig.of(PLAIN | {"target_modules": "all-linear"}).wants(k)
    regex = PeftConfig.of(
        PLAIN | {"target_modules": r".*layers\.0.*(q|k)_proj", "layers_to_transform": [0]}
    )
    assert [regex.wants(name) for name in (q0, q1, k)] == [True, False, True]


def test_names_of_tensors_say_what_they_are() -> None:
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
    assert {name: meaning(name).role for name in forms} == forms
    assert {meaning(name).module for name in forms} == {"model.layers.0.self_attn.q_proj"}
    with pytest.raises(BadAdapter, match="of DoRA"):
        meaning(f"{root}.lora_magnitude_vector.weight")
    with pytest.raises(BadAdapter, match="is no tensor of a LoRA adapter"):
        meaning("prompt_embeddings")


def test_modules_are_read_in_both_forms() -> None:
    assert read_module("sql=/adapters/sql=2") == Module("sql", "/adapters/sql=2")
    text = '{"name": "sql", "path": "/a", "base_model_name": "base"}'
    assert read_module(text) == Module("sql", "/a", "base")
    for bad, why in (
        ("sql", "neither NAME=PATH nor JSON"),
        ('{"name": "a"}', "needs name and path"),
        ('{"name": "a", "pth": "b"}', "'pth' is not known; did you mean 'path'"),
        ('{"name": ', "is no JSON"),
    ):
        with pytest.raises(ConfigError, match=why):
            read_module(bad)


def test_settings_that_contradict_each_other_are_refused() -> None:
    def settings(**options: Any) -> Settings | None:
        return Settings.of(EngineConfig(options=options))

    assert settings() is None
    assert settings(enable_lora=True, max_cpu_loras=-1, max_loras=3) == settings(
        enable_lora=True, max_loras=3
    )
    with pytest.raises(ConfigError, match="--max-cpu-loras 2 is less than --max-loras 3"):
        settings(enable_lora=True, max_loras=3, max_cpu_loras=2)
    with pytest.raises(ConfigError, match="--lora-dtype 'int8' is not served"):
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
    with pytest.raises(ConfigError, match="names 'a' twice"):
        settings(lora_modules=["a=1", "a=2"])
    with pytest.raises(ConfigError, match=r"LoRA\(s\) were provided for a non multimodal model"):
        settings(default_mm_loras={"audio": "x"})
