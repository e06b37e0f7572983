"""Describes the model of a GGUF file from its header.

Tokenizer files are written once to a folder of the user's cache, in the Hugging Face layout, under
a name derived from the header. The engine's own tokenizer and chat renderer then serve them.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from core.api import EngineConfig, InvalidRequest, ModelError, SamplingParams
from core.api.config import read_option_json
from core.api.models import ModelSource
from engine_gguf.config import make_config
from engine_gguf.config_source import ConfigSource
from engine_gguf.encoders import sentence
from engine_gguf.files import read_headers
from engine_gguf.header import Header, TensorEntry, printable
from engine_gguf.settings import Settings
from engine_gguf.tokenizer import ends, tokenizer_files
from engine_gguf.weights import block_types, expert_block_types, plan_weights

FORM: Final = "1"
"""Version of the cached files; a new version uses new folders."""
_MAX_FACTORS: Final = 1 << 16
_SAMPLED_BYTES: Final = 1 << 16
_SAMPLING: Final = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
_FACTORS: Final = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def find(model: str, config: EngineConfig) -> ModelSource:
    """Return the model source of a file or its splits.

    Raises `ModelError` naming file and fault.
    """
    path = Path(model).expanduser()
    headers = read_headers(path)
    settings = Settings(headers[0])
    try:
        return _describe(model, path, headers, settings, config)
    except ModelError as error:
        if str(path) in str(error):
            raise
        raise ModelError(f"{path} cannot be served: {error}") from error


def _describe(
    model: str, path: Path, headers: Sequence[Header], settings: Settings, config: EngineConfig
) -> ModelSource:
    tensors = {tensor.name: tensor for header in headers for tensor in header.tensors}
    stated = _config(settings, headers, tensors, config.options.get("hf_config_path"))
    stated = _merged(stated, config.model.hf_overrides)
    plans = plan_weights(headers, stated)
    types = {"blocks": block_types(plans), "experts": expert_block_types(plans)}
    stated["quantization_config"] = {"quant_method": "gguf", "file": str(path.absolute()), **types}
    identity = _identity(headers, stated)
    needs_own = config.model.tokenizer is None and not config.model.skip_tokenizer_init
    files = tokenizer_files(settings) if needs_own else {}
    tokens = settings.get("tokenizer.ggml.tokens")
    return ModelSource(
        name=model,
        architecture=stated["architectures"][0],
        hf_config=SimpleNamespace(**stated),
        path=str(_written(files)) if files else None,
        identity=identity,
        max_model_len=_context(stated),
        checkpoint_dtype=_dtype(tensors.values()),
        quantization="gguf",
        eos_token_ids=ends(settings, tokens) if isinstance(tokens, list) else (),
        sampling_defaults={} if config.model.generation_config == "vllm" else _sampling(settings),
        weight_loader="gguf",
        sentence=sentence(settings),
        origin="GGUF file",
    )


def _config(
    settings: Settings,
    headers: Sequence[Header],
    tensors: Mapping[str, TensorEntry],
    folder: object,
) -> dict[str, Any]:
    """Return the config of the given folder, or that of the file."""
    if folder is None:
        return make_config(ConfigSource(settings, tensors, _factors(headers)))
    path = Path(str(folder)).expanduser() / "config.json"
    try:
        stated = read_option_json("--hf-config-path", path)
        named = stated["architectures"][0]
    except (OSError, ValueError, RecursionError, KeyError, IndexError, TypeError) as error:
        raise ModelError(
            f"--hf-config-path: {path} does not describe a model ({error!r:.200}). Give a folder "
            "with a config.json that names its architecture."
        ) from error
    if not isinstance(named, str):
        raise ModelError(
            f"--hf-config-path: {path}: architecture: got {named!r:.60}; expected a string."
        )
    return dict(stated)


def _merged(stated: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with overrides; objects are merged, all else is replaced."""
    out = dict(stated)
    for key, value in overrides.items():
        old = out.get(key)
        out[key] = (
            _merged(old, value)
            if isinstance(old, Mapping) and isinstance(value, Mapping)
            else value
        )
    return out


def _factors(headers: Sequence[Header]) -> dict[str, list[float]]:
    """Return the RoPE frequency factors, which are stored as tensors."""
    found = {}
    for header in headers:
        for tensor in header.tensors:
            if tensor.name not in _FACTORS:
                continue
            if (
                tensor.kind.name != "F32"
                or len(tensor.shape) != 1
                or tensor.shape[0] > _MAX_FACTORS
            ):
                raise ModelError(
                    f"{header.path}: {printable(tensor.name)}: expected a list of float32 numbers. "
                    "Use another file."
                )
            with header.path.open("rb") as file:
                file.seek(tensor.start)
                found[tensor.name] = np.frombuffer(file.read(tensor.num_bytes), "<f4").tolist()
    return found


def _context(stated: Mapping[str, Any]) -> int:
    context = stated.get("max_position_embeddings", 2048)
    if type(context) is not int or context < 1:
        raise ModelError(
            f"max_position_embeddings: got {context!r:.60}; expected a positive integer."
        )
    return context


def _dtype(tensors: Any) -> str:
    """Return the dtype of the largest share of bytes, if plain; blocks are computed in bfloat16."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.kind.name] = sizes.get(tensor.kind.name, 0) + tensor.num_bytes
    largest = max(sizes, key=lambda name: sizes[name], default="F32")
    return {"F32": "float32", "F64": "float32", "F16": "float16"}.get(largest, "bfloat16")


def _sampling(settings: Settings) -> dict[str, Any]:
    """Return the sampling parameters that the file recommends."""
    given = {ours: settings.get(f"general.sampling.{theirs}") for theirs, ours in _SAMPLING.items()}
    stated = {name: value for name, value in given.items() if value is not None}
    try:
        SamplingParams(**stated)
    except (InvalidRequest, TypeError) as error:
        raise ModelError(
            f"its sampling parameters are invalid ({error}). Pass --generation-config vllm."
        ) from error
    return stated


def _identity(headers: Sequence[Header], stated: Mapping[str, Any]) -> str:
    """Return a hash of the config and of sizes, beginnings and ends of the files."""
    facts = {name: value for name, value in stated.items() if name != "quantization_config"}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for header in headers:
        size = header.path.stat().st_size
        digest.update(f"\0{size}\0".encode())
        with header.path.open("rb") as file:
            digest.update(file.read(_SAMPLED_BYTES))
            file.seek(max(0, size - _SAMPLED_BYTES))
            digest.update(file.read(_SAMPLED_BYTES))
    return digest.hexdigest()


def _written(files: Mapping[str, Any]) -> Path:
    """Return a folder with these JSON files: in the cache if writable, else a new one."""
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in files.items()}
    digest = hashlib.sha256(FORM.encode())
    for name in sorted(texts):
        digest.update(f"\0{name}\0{texts[name]}".encode(errors="surrogatepass"))
    folder = Path.home() / ".cache" / "engine_gguf" / digest.hexdigest()[:32]
    if all((folder / name).is_file() for name in texts):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = Path(tempfile.mkdtemp(dir=folder.parent))
    except OSError:
        new = folder = Path(tempfile.mkdtemp(prefix="engine_gguf_"))
    for name, text in texts.items():
        (new / name).write_text(text, encoding="utf-8")
    if new != folder:
        try:
            os.replace(new, folder)
        except OSError:  # another process wrote the same files
            return folder if all((folder / name).is_file() for name in texts) else new
    return folder
