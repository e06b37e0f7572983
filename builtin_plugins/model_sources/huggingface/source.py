"""Says what a model in the Hugging Face layout is, from its config files alone: reads no weight, imports no torch.

config.json is read as plain data. transformers' config classes would add seconds to every start, and nothing but
the facts is needed; code that a repository brings (`auto_map`) is never touched.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from builtin_plugins.model_sources.huggingface.hub import SETTINGS, WEIGHTS, download, is_hub_id
from core.api import EngineConfig, ModelError, ModelSource

_LENGTHS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "n_ctx",
)
_SAMPLING: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""Fields of generation_config.json and the sampling parameters they are defaults of."""
DEFAULT_CONTEXT: Final = 2048
"""Where the config states no length."""
_SAMPLED_BYTES: Final = 1 << 16
_DTYPES: Final = ("float32", "bfloat16", "float16")
_STRETCHING: Final = ("linear", "dynamic", "yarn")
"""Rotary scalings whose config states the context before scaling."""


def find(model: str, config: EngineConfig) -> ModelSource | None:
    """Return the source of a folder or hub id; None for a name that can be neither."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return describe(model, folder, config, origin="checkpoint")
    if not is_hub_id(model):
        return None
    needs_weights = config.load.load_format != "dummy"
    fetched = download(model, config, (*SETTINGS, *WEIGHTS) if needs_weights else SETTINGS)
    return describe(model, fetched, config, origin=f"hub id {model}")


def describe(name: str, folder: Path, config: EngineConfig, *, origin: str) -> ModelSource:
    """Return what the files of a folder say. Raises `ModelError` naming file and fault."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder} has no config.json, so nothing says what model it is. Give the model's folder.")
    stated = _merge(_read(path), config.model.hf_overrides)
    generation = _generation(folder, config)
    quantization = stated.get("quantization_config")
    return ModelSource(
        name=name,
        architecture=_architecture(stated, path),
        hf_config=SimpleNamespace(**stated),
        path=str(folder),
        identity=_identity(folder, stated),
        max_model_len=_context(stated, path),
        checkpoint_dtype=_dtype(stated),
        quantization=quantization.get("quant_method") if isinstance(quantization, Mapping) else None,
        eos_token_ids=_ids(generation.get("eos_token_id", stated.get("eos_token_id"))),
        sampling_defaults=_sampling(generation),
        origin=origin,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}. Restore it from where the model came.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object. Restore it from where the model came.")
    return value


def _merge(stated: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Lay overrides over the config; objects are merged, all else is replaced."""
    out = dict(stated)
    for key, value in overrides.items():
        old = out.get(key)
        both = isinstance(old, dict) and isinstance(value, Mapping)
        out[key] = _merge(old, value) if both else value  # type: ignore[arg-type]
    return out


def _architecture(stated: Mapping[str, Any], path: Path) -> str:
    names = stated.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    raise ModelError(
        f"{path} names no architecture (`architectures`); set it, for example "
        """with --hf-overrides '{"architectures": ["LlamaForCausalLM"]}'."""
    )


def _generation(folder: Path, config: EngineConfig) -> dict[str, Any]:
    """Return generation_config.json of the model, or of the folder the user names."""
    wanted = config.model.generation_config
    if wanted in ("auto", "vllm"):
        path = folder / "generation_config.json"
        return _read(path) if path.is_file() else {}
    path = Path(wanted).expanduser() / "generation_config.json"
    if not path.is_file():
        raise ModelError(f"--generation-config: there is no {path}; give auto, vllm, or a folder that holds one.")
    return _read(path)


def _sampling(generation: Mapping[str, Any]) -> dict[str, Any]:
    given = {ours: generation.get(theirs) for theirs, ours in _SAMPLING.items()}
    return {name: value for name, value in given.items() if value is not None}


def _ids(value: Any) -> tuple[int, ...]:
    listed = value if isinstance(value, list) else [value]
    return tuple(token for token in listed if isinstance(token, int))


def _dtype(stated: Mapping[str, Any]) -> str:
    name = str(stated.get("dtype") or stated.get("torch_dtype") or "float32").removeprefix("torch.")
    if name in _DTYPES:
        return name
    return "bfloat16" if name.startswith("float8") else "float32"


def _context(stated: Mapping[str, Any], path: Path) -> int:
    """Return the longest context the model states, rotary scaling included."""
    name = next((name for name in _LENGTHS if stated.get(name) is not None), None)
    if name is None:
        return DEFAULT_CONTEXT
    length = stated[name]
    if not isinstance(length, int) or length < 1:
        raise ModelError(f"{name} in {path} is {length!r}; it must be a positive integer.")
    scaling = stated.get("rope_parameters") or stated.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type")
    # A base of its own for local layers means that scaling concerns the others only, and is counted already.
    if kind not in _STRETCHING or "rope_local_base_freq" in stated:
        return length
    factor, original = scaling.get("factor") or 1.0, scaling.get("original_max_position_embeddings")
    if kind == "yarn" and original:
        return max(length, int(original * factor))
    return int(length * factor)


def _identity(folder: Path, stated: Mapping[str, Any]) -> str:
    """Return a hash of the config and of names, sizes, beginnings and ends of the weight files."""
    digest = hashlib.sha256(json.dumps(stated, sort_keys=True).encode())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"\0{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLED_BYTES))
            file.seek(max(0, size - _SAMPLED_BYTES))
            digest.update(file.read(_SAMPLED_BYTES))
    return digest.hexdigest()
