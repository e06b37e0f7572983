"""Composites that are served without their images answer text as transformers' whole models do."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import transformers

from core.errors import ModelError
from core.testing.checkpoints import ARCHITECTURES, VOCAB
from tests.builtin_plugins.models.test_engine_parity import assert_equal, expect, open_engine, run

FAST = "Gemma4UnifiedForConditionalGeneration"
LENGTHS = (70, 33)


class Composite(NamedTuple):
    """A model around a text part that has tiny forms."""

    text: str
    config: str
    parts: dict[str, dict[str, Any]]
    """Configs of the other parts."""


COMPOSITES = {
    "Dots3NoteForConditionalGeneration": Composite(
        "Dots3NoteForCausalLM",
        "Dots3NoteConfig",
        {
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "mlp_layer_types": ["dense"],
                "per_layer_config": {},
                "adapter_in_dim": 32,
                "adapter_out_dim": 64,
            },
            "audio_config": {
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "downsample_hidden_size": 8,
                "adapter_input_size": 32,
                "adapter_out_dim": 64,
            },
        },
    ),
    FAST: Composite(
        "Gemma4UnifiedForCausalLM",
        "Gemma4UnifiedConfig",
        {
            "vision_config": {
                "mm_embed_dim": 32,
                "output_proj_dims": 32,
                "mm_posemb_size": 16,
                "patch_size": 2,
            },
            "audio_config": {"audio_embed_dim": 16},
        },
    ),
    "Inkling2ForConditionalGeneration": Composite(
        "Inkling2ForCausalLM",
        "Inkling2Config",
        {
            "vision_config": {
                "text_hidden_size": 64,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
            }
        },
    ),
    "Qwen4ExpForConditionalGeneration": Composite(
        "Qwen4ExpForCausalLM",
        "Qwen4ExpConfig",
        {
            "vision_config": {
                "depth": 1,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_heads": 2,
                "out_hidden_size": 64,
                "patch_size": 4,
            }
        },
    ),
}


@torch.no_grad()
def save(architecture: str, folder: Path) -> Any:
    """Save the composite with random weights; return transformers' model of the folder."""
    composite = COMPOSITES[architecture]
    text = {"bos_token_id": VOCAB - 3, "eos_token_id": VOCAB - 1, "pad_token_id": VOCAB - 2}
    text |= deepcopy(dict(ARCHITECTURES[composite.text][1]))
    tied = bool(text.get("tie_word_embeddings"))
    parts = deepcopy(composite.parts)
    config_class: Any = getattr(transformers, composite.config)
    kind: Any = getattr(transformers, architecture)
    model = kind(config_class(text_config=text, tie_word_embeddings=tied, **parts))
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * 0.15
        is_norm = parameter.ndim == 1 and "norm" in name
        parameter.copy_(noise + (1.0 if is_norm and "Qwen" not in architecture else 0.0))
    model.save_pretrained(folder)
    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    return kind.from_pretrained(folder, **plain).eval()


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=() if name == FAST else pytest.mark.slow) for name in COMPOSITES],
)
def test_text_of_composites_equals_transformers(architecture: str, tmp_path: Path) -> None:
    model = save(architecture, tmp_path)
    cases = [expect(model, length) for length in LENGTHS]
    with open_engine(tmp_path, max_num_batched_tokens=16) as llm:
        for _ in range(2):  # the second time the prefix cache is warm
            assert_equal(run(llm, cases), cases)


def test_composite_without_text_config_is_refused(
    spec_of: Callable[[str, Any], Any],
) -> None:
    config = SimpleNamespace(text_config="none", architectures=[FAST])
    with pytest.raises(ModelError, match="text_config: got 'none'; expected an object"):
        spec_of(FAST, config)
