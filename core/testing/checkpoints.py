"""Tiny random checkpoints of any architecture, made with transformers, complete with a tokenizer.
No hub.

Weights are large enough that every layer matters: swapping early prompt tokens moves the last
logits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from core.errors import ConfigError, did_you_mean
from core.testing.draw import draw_weights
from core.testing.published.catalog import PUBLISHED, write_published
from core.testing.shrunken import causal_types, shrunken_config
from core.testing.tiny_configs import (
    DENSE,
    GPT_LIKE,
    MIXTURES,
    SHAPE,
    UNLIKE_OTHERS,
    VOCAB,
)
from core.testing.tiny_encoder_decoders import DECODERS_ALONE, ENCODER_DECODERS
from core.testing.tiny_encoders import POOLED
from core.testing.tiny_latent import LATENT
from core.testing.tiny_linear import LINEAR
from core.testing.tiny_recurrent import RECURRENT

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

_DENSE: Final = {**SHAPE, "num_key_value_heads": 2, "head_dim": 16}
_LLAMA3: Final = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONG: Final = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
}
_EXPERTS: Final = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROPE_BY_TYPE: Final = {
    "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
}
_ALTERNATING: Final = ["sliding_attention", "full_attention", "sliding_attention"]

# Every particular feature of an architecture is on, so that a test of the checkpoint is a test of
# all of them.
TINY: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "LlamaForCausalLM": (
        "LlamaConfig",
        {**_DENSE, "rope_parameters": _LLAMA3, "attention_bias": True},
    ),
    "MistralForCausalLM": ("MistralConfig", {**_DENSE, "sliding_window": 24}),
    "Qwen2ForCausalLM": (
        "Qwen2Config",
        {**_DENSE, "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    ),
    "Qwen3ForCausalLM": ("Qwen3Config", {**_DENSE, "head_dim": 32, "tie_word_embeddings": True}),
    "Gemma2ForCausalLM": (
        "Gemma2Config",
        {
            **_DENSE,
            "tie_word_embeddings": True,
            "sliding_window": 24,
            "layer_types": _ALTERNATING,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 8.0,
        },
    ),
    "Gemma3ForCausalLM": (
        "Gemma3TextConfig",
        {
            **_DENSE,
            "tie_word_embeddings": True,
            "sliding_window": 24,
            "layer_types": _ALTERNATING,
            "query_pre_attn_scalar": 24,
            "rope_parameters": _ROPE_BY_TYPE,
        },
    ),
    "Phi3ForCausalLM": (
        "Phi3Config",
        {
            **_DENSE,
            "rope_parameters": _LONG,
            "original_max_position_embeddings": 48,
            "sliding_window": 40,
        },
    ),
    "Olmo2ForCausalLM": ("Olmo2Config", {**_DENSE}),
    "GPT2LMHeadModel": (
        "GPT2Config",
        {
            "vocab_size": VOCAB,
            "n_embd": 64,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 512,
            "scale_attn_by_inverse_layer_idx": True,
        },
    ),
    "GPTNeoXForCausalLM": (
        "GPTNeoXConfig",
        {
            **SHAPE,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "MixtralForCausalLM": ("MixtralConfig", {**_DENSE, **_EXPERTS, "sliding_window": 24}),
    "Qwen3MoeForCausalLM": (
        "Qwen3MoeConfig",
        {
            **_DENSE,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
}
"""Those that go through every test there is: architecture to transformers' config class and facts
of its tiny form.
"""

ARCHITECTURES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    **TINY,
    **DENSE,
    **GPT_LIKE,
    **MIXTURES,
    **LATENT,
    **LINEAR,
    **UNLIKE_OTHERS,
    **RECURRENT,
}
"""All there are."""


def make_checkpoint(
    architecture: str, folder: str | Path, *, seed: int = 0, **overrides: Any
) -> Path:
    """Write a tiny random float32 checkpoint and its tokenizer to `folder` and return it.

    `architecture` is one of ours, generating or pooled, or a model type that transformers has a
    causal language model for. `overrides` are fields of the config; `torch_dtype="bfloat16"` stores
    the weights in another dtype. Equal arguments give equal files.
    """
    dtype = getattr(torch, overrides.pop("torch_dtype", "float32"))
    if architecture in PUBLISHED:
        if overrides:
            raise ConfigError(
                f"fields of {architecture}: got {', '.join(overrides)}; expected none."
            )
        write_published(architecture, Path(folder), seed, dtype)
        write_tokenizer(folder)
        return Path(folder)
    config = tiny_config(architecture, **overrides)
    model_class: Any = getattr(transformers, causal_types().get(architecture, architecture), None)
    make: Any = model_class or transformers.AutoModelForCausalLM.from_config
    model = make(config)
    draw_weights(model, seed)
    folder = Path(folder)
    log: Any = transformers.utils.logging
    bars = log.is_progress_bar_enabled()
    log.disable_progress_bar()
    try:
        model.to(dtype).save_pretrained(folder)
    finally:
        if bars:
            log.enable_progress_bar()
    if model_class is None:  # transformers runs it as another
        path = folder / "config.json"
        path.write_text(
            json.dumps({**json.loads(path.read_text()), "architectures": [architecture]})
        )
    write_tokenizer(folder)
    return folder


def tiny_config(architecture: str, **overrides: Any) -> Any:
    """Return transformers' config object of an architecture's tiny form, or of a model type's.

    Raises `ConfigError` for an unknown one.
    """
    ends: dict[str, int | None] = {"bos_token_id": VOCAB - 3, "eos_token_id": VOCAB - 1}
    if architecture in PUBLISHED:
        stated: dict[str, Any] = {**ends, **PUBLISHED[architecture].config}
        return transformers.PreTrainedConfig(**stated)
    if architecture in POOLED:
        config_class, facts = POOLED[architecture]
        return getattr(transformers, config_class)(**deepcopy({**ends, **facts, **overrides}))
    types = causal_types()
    own = types.get(architecture, architecture)
    known = {**ARCHITECTURES, **ENCODER_DECODERS, **DECODERS_ALONE}
    config_class, facts = known.get(own, ("", {}))
    if architecture in types and _type_of(config_class) != architecture:
        return shrunken_config(architecture, **overrides)
    if own not in known:
        by_name = {name: model_type for model_type, name in reversed(types.items())}
        if own in by_name:
            return shrunken_config(by_name[own], **overrides)
        raise ConfigError(
            f"no tiny checkpoint for {architecture!r}; available: {', '.join([*known, *POOLED])}"
            f"{did_you_mean(architecture, [*known, *POOLED, *types])}"
        )
    ends["pad_token_id"] = None
    return getattr(transformers, config_class)(
        **deepcopy({**ends, **facts, **overrides})
    )  # it changes what is nested


def _type_of(config_class: str) -> str:
    found: str = getattr(getattr(transformers, config_class, None), "model_type", "")
    return found


def write_tokenizer(folder: str | Path) -> None:
    """Write a byte-level tokenizer of 300 tokens with a ChatML template."""
    folder = Path(folder)
    letters = {
        letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    merges = [("Ġ", "t"), ("h", "e"), ("i", "n"), ("Ġt", "he"), ("Ġ", "a"), ("e", "r"), ("o", "n")]
    vocab = dict(letters)
    for left, right in merges:
        vocab[left + right] = len(vocab)
    while len(vocab) < VOCAB - len(_SPECIAL):
        vocab[f"<unused{len(vocab)}>"] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = byte_level  # type: ignore[assignment,unused-ignore]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment,unused-ignore]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in _SPECIAL]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[0],
        "eos_token": _SPECIAL[2],
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
