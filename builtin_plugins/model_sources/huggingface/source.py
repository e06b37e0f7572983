"""Finds models in the Hugging Face layout and reads their config files.

Reads no weights and imports no torch. config.json is read as plain data, because transformers'
config classes would add seconds to every start. Code of a repository (`auto_map`) is never run.
"""

from __future__ import annotations

import hashlib
import json
import os.path
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from builtin_plugins.model_sources.huggingface.hub import SETTINGS, WEIGHTS, download, is_hub_id
from builtin_plugins.model_sources.huggingface.mistral_format import LOADER, PARAMS, read_params
from builtin_plugins.model_sources.huggingface.sentence import longest_text, read_sentence_facts
from builtin_plugins.model_sources.huggingface.settings_files import (
    quantization_from_side_files,
    quantization_of,
)
from builtin_plugins.model_sources.huggingface.text_part import default_of_text_part, text_part
from builtin_plugins.model_sources.huggingface.tokens import check_tokens, read_token_rules
from builtin_plugins.model_sources.settings_file import read_settings_object
from core.api import EngineConfig, InvalidRequest, ModelError, SamplingParams
from core.api.models import ModelSource
from core.model_spec.facts import MAX_POSITIONS

_LENGTHS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "n_ctx",
    "max_target_positions",
)
_SAMPLING: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""Fields of generation_config.json, and the sampling parameters they set defaults of."""
_STARTS: Final = ("decoder_start_token_id", "forced_bos_token_id", "forced_decoder_ids")
"""Fields of encoder-decoder models that newer checkpoints have in generation_config.json."""
MAX_NAME_LENGTH: Final = 200
"""Length limit of an architecture's name, in characters."""
DEFAULT_CONTEXT: Final = 2048
"""Context length of a config without one."""
_ONE_FILE: Final = (".gguf", ".ggml", ".safetensors", ".bin", ".pt", ".pth")
"""Suffixes of single files that are given instead of a folder."""
_SAMPLED_BYTES: Final = 1 << 16
_DTYPES: Final = ("float32", "bfloat16", "float16")
_STRETCHING: Final = ("linear", "dynamic", "yarn")
"""Rope scaling types with configs that state the context before scaling."""


def find(model: str, config: EngineConfig) -> ModelSource | None:
    """Return the source of a folder or hub id; None for other names."""
    folder = Path(model).expanduser()
    is_folder = os.path.isdir(folder)  # Path.is_dir raises where a name is too long for one
    if folder.suffix.lower() in _ONE_FILE and not is_folder:
        advice = (
            "Install the plugin engine-gguf (plugins/engine-gguf of the sources), or give"
            if folder.suffix.lower() == ".gguf"
            else "Give"
        )
        raise ModelError(
            f"{model} is a single {folder.suffix[1:]} file, and weights are read from folders with "
            "a config.json only. "
            f"{advice} the folder, or the hub id, of the model it was made from."
        )
    if is_folder:
        return describe(model, folder, config, origin="checkpoint")
    if not is_hub_id(model):
        return None
    needs_weights = config.load.load_format != "dummy"
    fetched = download(model, config, (*SETTINGS, *WEIGHTS) if needs_weights else SETTINGS)
    return describe(model, fetched, config, origin=f"hub id {model}")


def describe(name: str, folder: Path, config: EngineConfig, *, origin: str) -> ModelSource:
    """Return the source of a folder. Raises `ModelError` with the file and the error."""
    path = folder / "config.json"
    own_format = not path.is_file() and (folder / PARAMS).is_file()
    if own_format:
        path = folder / PARAMS
    elif not path.is_file():
        raise ModelError(f"{folder} has no config.json. Give the model's folder.")
    found = read_params(path) if own_format else read_settings_object(path)
    stated = _merge(found, config.model.hf_overrides)
    _refuse_variants(stated, path)
    generation, where = _generation(folder, config)
    check_tokens(stated, generation, path, where)
    stated |= {
        key: generation[key] for key in _STARTS if stated.get(key) is None and key in generation
    }
    if config.model.generation_config != "vllm":
        stated |= read_token_rules(generation, where)
    stated |= quantization_from_side_files(folder, stated)
    text = text_part(stated)
    return ModelSource(
        name=name,
        architecture=_architecture(stated, path),
        hf_config=SimpleNamespace(**stated),
        path=str(folder),
        identity=_identity(folder, stated),
        max_model_len=longest_text(folder, _context(text, path, stated)),
        checkpoint_dtype=_dtype(text),
        quantization=quantization_of(stated, path),
        eos_token_ids=_ids(generation.get("eos_token_id", text.get("eos_token_id")), where),
        sampling_defaults={}
        if config.model.generation_config == "vllm"
        else _sampling(generation, where),
        weight_loader=LOADER if own_format else "safetensors",
        sentence=read_sentence_facts(folder, stated),
        origin=origin,
    )


def _refuse_variants(stated: Mapping[str, Any], path: Path) -> None:
    """Raise `ModelError` for attention variants and processors that no architecture supports."""
    processor = stated.get("io_processor_plugin")
    if processor:
        raise ModelError(
            f"io_processor_plugin in {path}: got {processor!r:.80}; expected none, because custom "
            "input and output processors are not served. Leave it out with --hf-overrides "
            """'{"io_processor_plugin": null}'."""
        )
    chunks = stated.get("dual_chunk_attention_config")
    if chunks:
        size = chunks.get("chunk_size") if isinstance(chunks, Mapping) else None
        raise ModelError(
            f"dual_chunk_attention_config in {path} selects dual chunk attention, which is not "
            "served. Contexts within "
            f"one chunk{f' ({size} tokens)' if size else ''} need none: "
            """leave it out with --hf-overrides '{"dual_chunk_attention_config": null}'."""
        )


def _merge(stated: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with overrides; objects are merged, other values replaced."""
    out = dict(stated)
    for key, value in overrides.items():
        old = out.get(key)
        both = isinstance(old, dict) and isinstance(value, Mapping)
        out[key] = _merge(old, value) if both else value  # type: ignore[arg-type]
    return out


def _architecture(stated: Mapping[str, Any], path: Path) -> str:
    names = stated.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        if len(names[0]) > MAX_NAME_LENGTH:
            raise ModelError(
                f"{path}: architectures: got a name of {len(names[0])} characters; expected up to "
                f"{MAX_NAME_LENGTH}. Restore the file from the model's source."
            )
        return names[0]
    known = None if names else _causal_lm(stated.get("model_type"))
    if known is not None:
        return known
    raise ModelError(
        f"{path} names no architecture (`architectures`); set it, for example "
        """with --hf-overrides '{"architectures": ["LlamaForCausalLM"]}'."""
    )


def _causal_lm(model_type: object) -> str | None:
    """Return transformers' causal LM class of a model type, for configs without `architectures`."""
    if not isinstance(model_type, str):
        return None
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    )  # lazy: slow to import

    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    return name if isinstance(name, str) else None


def _generation(folder: Path, config: EngineConfig) -> tuple[dict[str, Any], Path]:
    """Return the content and path of generation_config.json, by --generation-config."""
    choice = config.model.generation_config
    if choice in ("auto", "vllm"):
        path = folder / "generation_config.json"
        return (read_settings_object(path) if path.is_file() else {}), path
    path = Path(choice).expanduser() / "generation_config.json"
    if not path.is_file():
        raise ModelError(
            f"--generation-config: there is no {path}; give auto, vllm, or a folder that holds one."
        )
    return read_settings_object(path), path


def _sampling(generation: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the sampling defaults of a generation config. Raises `ModelError` for invalid ones."""
    given = {ours: generation.get(theirs) for theirs, ours in _SAMPLING.items()}
    stated = {name: value for name, value in given.items() if value is not None}
    try:
        SamplingParams(**stated)
    except InvalidRequest as error:
        raise ModelError(
            f"{path}: {error} Correct it, or leave it out with --generation-config vllm."
        ) from error
    return stated


def _ids(value: Any, path: Path) -> tuple[int, ...]:
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(token) is not int for token in listed):
        raise ModelError(
            f"eos_token_id of {path.parent} is {value!r:.100}; it must be a token id or a list of "
            "them."
        )
    return tuple(token for token in listed if token >= 0)


def _dtype(stated: Mapping[str, Any]) -> str:
    name = str(stated.get("dtype") or stated.get("torch_dtype") or "float32").removeprefix("torch.")
    if name in _DTYPES:
        return name
    return "bfloat16" if name.startswith("float8") else "float32"


def _context(stated: Mapping[str, Any], path: Path, whole: Mapping[str, Any]) -> int:
    """Return the longest context of the text part, including rope scaling."""
    name = next((name for name in _LENGTHS if stated.get(name) is not None), None)
    if name is None:
        nested = stated is not whole
        default = default_of_text_part(whole, _LENGTHS[0]) if nested else None
        return default if type(default) is int else DEFAULT_CONTEXT
    length = stated[name]
    if type(length) is not int or length < 1:
        raise ModelError(f"{name} in {path} is {length!r:.100}; it must be a positive integer.")
    scaling = stated.get("rope_parameters") or stated.get("rope_scaling")
    if not isinstance(scaling, Mapping):
        return length
    kind = scaling.get("rope_type") or scaling.get("type")
    factor = scaling.get("factor")
    original = scaling.get("original_max_position_embeddings")
    # With rope_local_base_freq, scaling applies to global layers only and is included already. A
    # factor that is no number is refused with all other facts, when the architecture
    # reads them.
    if (
        kind not in _STRETCHING
        or "rope_local_base_freq" in stated
        or not isinstance(factor, (int, float))
    ):
        return length
    stretches = kind == "yarn" and isinstance(original, int)
    unscaled: int = original if stretches else length  # type: ignore[assignment]
    if unscaled > MAX_POSITIONS or not unscaled * factor <= MAX_POSITIONS:
        raise ModelError(
            f"{path}: rotary scaling: got {unscaled!r:.100} positions and the factor "
            f"{factor!r:.100}; expected a context of up to {MAX_POSITIONS} positions. Restore the "
            "file from the model's source."
        )
    return max(length if stretches else 1, int(unscaled * factor))


def _identity(folder: Path, stated: Mapping[str, Any]) -> str:
    """Return a hash of the config and of names, sizes, heads and tails of the weight files."""
    digest = hashlib.sha256(json.dumps(stated, sort_keys=True).encode())
    for path in sorted(path for path in folder.glob("*.safetensors") if path.is_file()):
        size = path.stat().st_size
        digest.update(f"\0{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLED_BYTES))
            file.seek(max(0, size - _SAMPLED_BYTES))
            digest.update(file.read(_SAMPLED_BYTES))
    return digest.hexdigest()
