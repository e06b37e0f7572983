"""Reads sentence-transformers' files of a checkpoint: modules, pooling, dense layers, prompts.

Supports the folders and fields of versions 2 to 5. Absent files are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from builtin_plugins.model_sources.settings_file import (
    read_settings_json,
    read_settings_object,
)
from core.api import ModelError
from core.model_spec.pooling import DenseSpec, SentenceFacts

MODULES: Final = "modules.json"
_POOLERS: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last",
}
"""Poolers by config field, in the order of their vectors."""
_MODES: Final = {
    "lasttoken": "last",
    "weightedmean": "weighted_mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
}
"""Values of the newer field `pooling_mode` that differ from our pooler names."""
_ACTIVATIONS: Final = {
    "Identity": "",
    "Tanh": "tanh",
    "GELU": "gelu",
    "ReLU": "relu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}
_SCORES: Final = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}
MAX_NAME_LENGTH: Final = 255
"""Length limit of a module's folder, in characters."""
MAX_POOLERS: Final = 8
_LAYERS: Final = ("Transformer", "Pooling", "Dense", "Normalize")


def read_sentence_facts(folder: Path, stated: Mapping[str, Any]) -> SentenceFacts | None:
    """Return the values of a folder's files; None without files.

    Raises `ModelError` for unsupported modules.
    """
    scores = _scores(folder, stated)
    modules = _modules(folder / MODULES)
    if modules is None:
        return None if scores is None else SentenceFacts(output_activation=scores)
    config = _optional(folder / "config_sentence_transformers.json")
    pooler = None
    normalize = False
    include_prompt = True
    dense = []
    for kind, name in modules:
        if kind == "Pooling":
            pooling = folder / name / "config.json"
            pooler = _pooler(pooling)
            include_prompt = read_settings_object(pooling).get("include_prompt") is not False
        elif kind == "Dense":
            dense.append(_dense(folder / name / "config.json", name))
        normalize |= kind == "Normalize"
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, Mapping):
        raise ModelError(
            f"config_sentence_transformers.json of {folder}: prompts: got {prompts!r:.100}; "
            "expected an object. Restore it from the model's source."
        )
    return SentenceFacts(
        pooler=pooler,
        normalize=normalize,
        include_prompt=include_prompt,
        dense=tuple(dense),
        prompts={str(name): str(text) for name, text in prompts.items()},
        default_prompt=config.get("default_prompt_name"),
        lower_case=bool(_transformer(folder).get("do_lower_case")),
        output_activation=scores,
    )


def longest_text(folder: Path, context: int) -> int:
    """Return the context length, limited by the max_seq_length of sentence-transformers."""
    length = _transformer(folder).get("max_seq_length")
    return min(context, length) if type(length) is int and length > 0 else context


def _modules(path: Path) -> list[tuple[str, str]] | None:
    """Return class and folder of each module, in order."""
    if not path.is_file():
        return None
    listed = read_settings_json(path)
    try:
        found = [
            (str(m["type"]).rpartition(".")[2], str(m["path"]))
            for m in sorted(listed, key=lambda m: m["idx"])
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{path} is not a list of modules ({error!r}). Restore it from the model's source."
        ) from error
    for kind, name in found:
        if kind not in _LAYERS:
            raise ModelError(
                f"{path}: got the module class {kind!r:.100}; expected one of {', '.join(_LAYERS)}."
            )
        if Path(name).name != name or "\0" in name or len(name) > MAX_NAME_LENGTH:
            raise ModelError(
                f"{path}: got the folder {name!r:.100}; expected one in the model's folder."
            )
    return found


def _pooler(path: Path) -> str:
    config = read_settings_object(path)
    mode = config.get("pooling_mode")
    modes = mode.split("+") if isinstance(mode, str) else mode or ()
    if not isinstance(modes, (list, tuple)) or not all(isinstance(each, str) for each in modes):
        raise ModelError(
            f"{path}: pooling_mode is {mode!r}; it must be a name, or a list of names."
        )
    named = [_MODES.get(each, each) for each in modes] or [
        n for key, n in _POOLERS.items() if config.get(key)
    ]
    if not named:
        raise ModelError(f"{path} selects no pooler; set pooling_mode, for example to mean.")
    if len(named) > MAX_POOLERS:
        raise ModelError(
            f"{path}: pooling_mode: got {len(named)} names; expected up to {MAX_POOLERS}."
        )
    return "+".join(named)


def _dense(path: Path, name: str) -> DenseSpec:
    config = read_settings_object(path)
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise ModelError(
            f"{path}: the activation {activation!r} is not known; known: {', '.join(_ACTIVATIONS)}."
        )
    width = config.get("out_features")
    if type(width) is not int:
        raise ModelError(f"{path}: out_features is {width!r}; it must be an integer.")
    return DenseSpec(
        name=f"{name}.linear",
        width=width,
        bias=bool(config.get("bias", True)),
        activation=_ACTIVATIONS[activation],
    )


def _scores(folder: Path, stated: Mapping[str, Any]) -> Any:
    """Return the output activation of a cross-encoder; None if its files state none."""
    own = stated.get("sentence_transformers")
    name = own.get("activation_fn") if isinstance(own, Mapping) else None
    name = name or stated.get("sbert_ce_default_activation_function")
    name = name or _optional(folder / "config_sentence_transformers.json").get("activation_fn")
    if name is None:
        return None
    kind = str(name).rpartition(".")[2]
    if kind not in _SCORES:
        raise ModelError(
            f"scores go through {name!r}, which is not known; known: {', '.join(_SCORES)}."
        )
    return _SCORES[kind]


def _transformer(folder: Path) -> Mapping[str, Any]:
    return _optional(folder / "sentence_bert_config.json")


def _optional(path: Path) -> dict[str, Any]:
    return read_settings_object(path) if path.is_file() else {}
