"""Model sources of folders and hub ids, from config files only."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants as hub_constants
from huggingface_hub.errors import LocalEntryNotFoundError

from builtin_plugins.model_sources.huggingface.hub import is_hub_id
from builtin_plugins.model_sources.huggingface.source import find
from core.config import EngineConfig
from core.config.sections import LoadConfig, ModelConfig
from core.contracts.models import ModelSource
from core.errors import ModelError
from tests.timeouts import TIMEOUT_S

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 64,
    "eos_token_id": 7,
    "dtype": "bfloat16",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"12345678")
    return tmp_path


def source_of(folder: Path, changes: dict[str, Any] | None = None, **model: Any) -> ModelSource:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **(changes or {})}))
    source = find(str(folder), EngineConfig(ModelConfig(str(folder), **model)))
    assert source is not None
    return source


def test_source_describes_folder(folder: Path) -> None:
    source = source_of(folder)
    assert source.architecture == "LlamaForCausalLM"
    assert (source.max_model_len, source.checkpoint_dtype, source.eos_token_ids) == (
        64,
        "bfloat16",
        (7,),
    )
    assert source.path == str(folder)


def test_generation_config_sets_sampling_defaults_and_eos(folder: Path) -> None:
    stated = {
        "temperature": 0.6,
        "top_k": 20,
        "eos_token_id": [7, 9],
        "max_new_tokens": 50,
        "do_sample": True,
    }
    (folder / "generation_config.json").write_text(json.dumps(stated))
    source = source_of(folder)
    assert source.sampling_defaults == {"temperature": 0.6, "top_k": 20, "max_tokens": 50}
    assert source.eos_token_ids == (7, 9)


def test_generation_config_flag_selects_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    with pytest.raises(ModelError, match="--generation-config"):
        source_of(folder, generation_config=str(other))
    (other / "generation_config.json").write_text('{"top_p": 0.5}')
    assert source_of(folder, generation_config=str(other)).sampling_defaults == {"top_p": 0.5}


def test_identity_changes_with_config_and_weights(folder: Path) -> None:
    first = source_of(folder).identity
    assert source_of(folder).identity == first
    assert source_of(folder, hf_overrides={"eos_token_id": 8}).identity != first
    (folder / "model.safetensors").write_bytes(b"12345679")
    assert source_of(folder).identity != first


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_position_embeddings": None, "n_positions": 32}, 32),
        ({"max_position_embeddings": None}, 2048),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 256),
        (
            {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                }
            },
            128,
        ),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 4.0}}, 64),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_local_base_freq": 1e4}, 64),
    ],
)
def test_context_length_follows_the_config(
    folder: Path, changes: dict[str, Any], expected: int
) -> None:
    assert source_of(folder, changes).max_model_len == expected


TEXT_PART = {"max_position_embeddings": 32, "dtype": "float16", "eos_token_id": [3]}


@pytest.mark.parametrize("name", ["text_config", "llm_config"])
def test_text_part_decides_context_dtype_and_end_tokens(folder: Path, name: str) -> None:
    source = source_of(folder, {name: TEXT_PART})
    assert source.max_model_len == 32
    assert source.checkpoint_dtype == "float16"
    assert source.eos_token_ids == (3,)
    whole = source_of(folder, {name: {"dtype": None, "hidden_size": 64}})
    assert whole.max_model_len == 64
    assert whole.checkpoint_dtype == "bfloat16"
    assert whole.eos_token_ids == (7,)


def test_text_part_without_a_context_has_that_of_its_config_class(folder: Path) -> None:
    text = {"model_type": "gemma3_text", "sliding_window": 1024}
    absent = {"max_position_embeddings": None, "model_type": "gemma3", "text_config": text}
    assert source_of(folder, absent).max_model_len == 131_072


def test_quantization_method_is_read_from_config(folder: Path) -> None:
    assert (
        source_of(folder, {"quantization_config": {"quant_method": "gptq"}}).quantization == "gptq"
    )


@pytest.mark.parametrize("stated", ["torch.float16", "float16"])
def test_old_and_new_dtype_fields(folder: Path, stated: str) -> None:
    assert source_of(folder, {"dtype": None, "torch_dtype": stated}).checkpoint_dtype == "float16"


def test_unsupported_attention_is_rejected_with_remedy(folder: Path) -> None:
    chunks = {"dual_chunk_attention_config": {"chunk_size": 262144, "local_size": 8192}}
    with pytest.raises(
        ModelError, match=r"dual_chunk_attention_config .*\(262144 tokens\) .*--hf-overrides"
    ):
        source_of(folder, chunks)
    assert source_of(folder, chunks, hf_overrides={"dual_chunk_attention_config": None})


def test_checkpoint_code_is_never_imported(folder: Path) -> None:
    (folder / "modeling_evil.py").write_text("raise SystemExit('imported')")
    source = source_of(
        folder, {"auto_map": {"AutoConfig": "modeling_evil.Config"}}, trust_remote_code=False
    )
    assert source.architecture == "LlamaForCausalLM"


def test_finding_a_model_imports_neither_torch_nor_transformers(folder: Path) -> None:
    program = (
        "import sys; from core.config import EngineConfig; "
        "from builtin_plugins.model_sources.huggingface.source import find; "
        f"find({str(folder)!r}, EngineConfig()); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], timeout=TIMEOUT_S, check=False).returncode
        == 0
    )


# --- the hub --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "Qwen/Qwen3-0.6B", "a/b.c_d"])
def test_hub_ids_are_recognised(name: str) -> None:
    assert is_hub_id(name)


@pytest.mark.parametrize(
    "name", ["./model", "/tmp/model", "~/model", "a/b/c", "../x", "a b", "scripted:", "a--b", ""]
)
def test_paths_are_not_hub_ids(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # files next to it are found
    assert not is_hub_id(name)
    assert find(name or "/nowhere", EngineConfig()) is None


def test_hub_download_uses_config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: dict[str, Any] = {}

    def snapshot(name: str, **options: Any) -> str:
        requested.update(options, name=name)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    config = EngineConfig(
        ModelConfig(revision="v1", hf_token="t"), LoadConfig(load_format="dummy", download_dir="/d")
    )
    source = find("owner/name", config)
    assert source is not None
    assert (source.name, source.path, source.origin) == (
        "owner/name",
        str(folder),
        "hub id owner/name",
    )
    assert (requested["revision"], requested["token"], requested["cache_dir"]) == ("v1", "t", "/d")
    assert "*.safetensors" not in requested["allow_patterns"], "dummy weights need no files"
    assert not any(pattern.endswith(".py") for pattern in requested["allow_patterns"])


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_cache(cache: Path) -> Path:
    """Write a hub cache with one repository; return the repository's folder."""
    repository = cache / "models--owner--name"
    snapshot = repository / "snapshots" / COMMIT
    for folder in (snapshot, repository / "refs", repository / "blobs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
    return repository


@pytest.mark.parametrize(
    ("part", "make", "message"),
    [
        ("refs/main", lambda path: path.write_text("../../.."), "expected a commit"),
        ("refs/main", lambda path: path.write_text("/etc"), "expected a commit"),
        ("refs/main", lambda path: path.write_text(""), "expected a commit"),
        ("refs/main", lambda path: path.write_bytes(b"a\0b"), "expected a commit"),
        ("refs/main", lambda path: path.write_text("a" * 5000), "expected a commit"),
        ("refs/main", lambda path: path.touch() or os.truncate(path, 10 << 30), "a commit"),
        ("refs/main", os.mkfifo, "expected a regular file"),
        ("refs/main", lambda path: path.mkdir(), "expected a regular file"),
        ("refs/main", lambda path: path.symlink_to("/dev/zero"), "expected a regular file"),
        ("refs/main", lambda path: path.symlink_to(path), "symbolic links"),
        ("blobs/1.incomplete", os.mkfifo, "incomplete: expected a regular file"),
        ("blobs/1.incomplete", lambda path: path.symlink_to("/dev/zero"), "a regular file"),
        ("snapshots", lambda path: path.touch(), "not in the hub cache"),
        (f"snapshots/{COMMIT}/config.json", os.mkfifo, "no config.json"),
        (f"snapshots/{COMMIT}/config.json", lambda path: path.symlink_to("/dev/zero"), "config"),
    ],
)
def test_hostile_hub_cache_is_refused_by_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    make: Callable[[Path], None],
    message: str,
) -> None:
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    config = EngineConfig(load=LoadConfig(load_format="dummy", download_dir=str(tmp_path)))
    repository = write_cache(tmp_path)
    assert find("owner/name", config) is not None
    path = repository / part
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    make(path)
    with pytest.raises(ModelError, match=message):
        find("owner/name", config)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (LocalEntryNotFoundError("offline"), "the hub is unreachable .* copy the hub cache"),
        (RuntimeError("tls"), "cannot be downloaded from the hub: tls"),
    ],
)
def test_unreachable_hub_error_names_remedy(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot(name: str, **options: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(ModelError, match=message):
        find("owner/name", EngineConfig())


@pytest.mark.parametrize("name", ["x.gguf", "./model.safetensors", "owner/name/x-Q4_K.GGUF"])
def test_single_weight_file_is_rejected(name: str) -> None:
    with pytest.raises(
        ModelError, match=r"is a single (gguf|GGUF|safetensors) file, .* [Gg]ive the folder"
    ):
        find(name, EngineConfig())
