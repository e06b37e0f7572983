"""Mistral's own format: params.json, read as the config.json of the same model.

Field names as vLLM reads them (vllm/transformers_utils/configs/mistral.py, v0.13) for Mistral 7B to
Large 3; the loader `mistral` renames the tensors of consolidated*.safetensors.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from builtin_plugins.model_sources.settings_file import read_settings_object
from core.api import ModelError

log = logging.getLogger(__name__)

PARAMS: Final = "params.json"
LOADER: Final = "mistral"
"""Weight loader of the format."""
_FIELDS: Final = {
    "dim": "hidden_size",
    "norm_eps": "rms_norm_eps",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "tied_embeddings": "tie_word_embeddings",
    "activation": "hidden_act",
}
_EXPERTS: Final = {
    "first_k_dense_replace": "first_k_dense_replace",
    "num_experts_per_tok": "num_experts_per_tok",
    "num_experts": "n_routed_experts",
    "expert_hidden_dim": "moe_intermediate_size",
    "routed_scale": "routed_scaling_factor",
    "num_shared_experts": "n_shared_experts",
    "num_expert_groups": "n_group",
    "num_expert_groups_per_tok": "topk_group",
}
_YARN: Final = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "beta": "beta_fast",
    "alpha": "beta_slow",
}
_IMAGES: Final = ("vision_encoder", "multimodal")
_CONTEXT: Final = 128_000
"""Context of a file without one, in tokens."""


def read_params(path: Path) -> dict[str, Any]:
    """Return the fields of config.json for a params.json. Raises `ModelError` by field."""
    given = read_settings_object(path)
    images = next((name for name in _IMAGES if given.pop(name, None)), None)
    if images is not None:
        log.warning(
            "%s: %s is not served from this format: the model reads text only", path, images
        )
    stated = {_FIELDS.get(name, name): value for name, value in given.items()}
    moe = _part(stated, "moe", path)
    scaling = _part(stated, "llama_4_scaling", path)
    rope = _rope(stated, _part(stated, "yarn", path), scaling, path)
    if moe and stated.get("kv_lora_rank") is None:
        raise ModelError(
            f"moe in {path}: got experts without kv_lora_rank; expected latent attention, as in "
            "Mistral Large 3. Use the checkpoint with a config.json."
        )
    if moe:
        stated |= {ours: moe[name] for name, ours in _EXPERTS.items() if name in moe}
        stated |= {"norm_topk_prob": True, "rope_interleave": True}
        named = ("MistralLarge3ForCausalLM", "mistral4")
    else:
        named = ("Ministral3ForCausalLM", "ministral3") if scaling else ("MistralForCausalLM", "")
    stated |= {"architectures": [named[0]], "model_type": named[1] or "mistral"}
    stated |= _quantization(_part(stated, "quantization", path), path)
    length = stated.get("max_position_embeddings") or stated.get("max_seq_len") or _CONTEXT
    defaults = {"hidden_act": "silu", "tie_word_embeddings": False, "sliding_window": None}
    shared = {"rope_parameters": rope, "max_position_embeddings": length, "dtype": "bfloat16"}
    return {**defaults, "bos_token_id": 1, "eos_token_id": 2, **shared, **stated}


def _part(stated: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    """Return an object of the file and remove it; empty if it is absent or null."""
    value = stated.pop(name, None) or {}
    if not isinstance(value, dict):
        raise ModelError(
            f"{name} in {path}: got {value!r:.100}; expected an object. Restore the file from the "
            "model's source."
        )
    return value


def _rope(
    stated: dict[str, Any], yarn: Mapping[str, Any], scaling: Mapping[str, Any], path: Path
) -> dict[str, Any]:
    """Return rotary parameters with the names of config.json."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": stated.pop("rope_theta", 1e4)}
    if yarn:
        rope |= {ours: yarn[name] for name, ours in _YARN.items() if name in yarn}
        rope["rope_type"] = "yarn"
        if yarn.get("apply_scale", True):
            rope |= {"mscale": 1.0, "mscale_all_dim": 1.0}
        else:
            rope["attention_factor"] = 1.0
    if scaling:
        length = "original_max_position_embeddings"
        if rope.setdefault(length, scaling.get(length)) != scaling.get(length):
            raise ModelError(
                f"llama_4_scaling in {path}: got {length}={scaling.get(length)!r:.60}; expected "
                f"{rope[length]!r:.60}, as in yarn. Restore the file from the model's source."
            )
        rope["llama_4_scaling_beta"] = scaling.get("beta")
    return rope


def _quantization(given: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the field `quantization_config` of config.json; nothing without quantization."""
    if not given:
        return {}
    method = str(given.get("quant_method", "")).lower().replace("_", "-")
    if method == "compressed-tensors":
        return {"quantization_config": {**given, "quant_method": method}}
    if given.get("qformat_weight") == "fp8_e4m3":
        dynamic = given.get("qscheme_act") == "NO_SCALES"
        scheme = "dynamic" if dynamic else "static"
        return {"quantization_config": {"quant_method": "fp8", "activation_scheme": scheme}}
    raise ModelError(
        f"quantization in {path}: got {dict(given)!r:.100}; expected qformat_weight fp8_e4m3 or "
        "compressed-tensors. Use a checkpoint with a config.json."
    )
