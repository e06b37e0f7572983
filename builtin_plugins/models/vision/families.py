"""What the configs of vision-language models do not say, by architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from builtin_plugins.models.vision import (
    decoders,
    ernie4_5_vl,
    gemma,
    gemma3n,
    minimax_m3,
    mllama,
    molmo2,
    ovis2,
    phi4_multimodal,
    tower,
)
from builtin_plugins.models.vision.image_text import UNCHANGED, TextPart
from builtin_plugins.models.vision.plugin import SPEC, engine_models
from builtin_plugins.models.vision.tower import Arrange, Features, image_features
from core.model_spec.decoder import DecoderSpec
from core.model_spec.tower import LookAhead


def no_look_ahead(config: Any) -> LookAhead:
    """Return that no tokens do."""
    del config
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture."""

    look_ahead: Callable[[Any], LookAhead] = no_look_ahead
    """Returns which tokens see each other, for a config."""
    rope_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Rotary parameters that the config may leave out."""
    decoder: Callable[[Any], DecoderSpec] | None = None
    """Reads the text config; None: the native decoder of its model type."""
    scaled_images: bool = False
    """Whether the factor on embeddings of the text part applies to images, too."""
    rename: tuple[tuple[str, str], ...] = ()
    """Renames of the text part's tensors, before those of all families."""
    marks: Callable[[Any], list[int]] | None = None
    """Returns the tokens besides the placeholder that get embeddings of the tower."""
    arrange: Arrange | None = None
    """Puts an item's embeddings in the order of its tokens; None: they are in this order."""
    text: TextPart = UNCHANGED
    """How a text part of transformers' own modules is run."""
    in_encoder: bool = False
    """Whether images are part of the input of the text part's encoder."""
    cross_positions: Callable[[Any], int] | None = None
    """Returns the encoder states of an image that cross attention reads; None: it reads none."""
    placeholder: Callable[[Any], int] | None = None
    """Returns the placeholder token; None: the config has it by a usual name."""
    unused: tuple[str, ...] = ()
    """Modules besides the language model that are not loaded."""
    features: Features = image_features
    """Returns the function that encodes images, of the tower's modules."""


GLM_ROPE: Final = {"mrope_section": [8, 12, 12], "partial_rotary_factor": 1.0}
QWEN2_ROPE: Final = {"mrope_section": [16, 24, 24]}
QWEN3_ROPE: Final = {"mrope_section": [24, 20, 20], "mrope_interleaved": True}
QWEN3_5_ROPE: Final = {"mrope_section": [11, 11, 10], "mrope_interleaved": True}

FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        **{entry.name: Family() for entry in engine_models() if entry.target == SPEC},
        "AyaVisionForConditionalGeneration": Family(decoder=decoders.unscaled),
        "Cohere2VisionForConditionalGeneration": Family(decoder=decoders.unscaled),
        "Ernie4_5_VLMoeForConditionalGeneration": Family(text=ernie4_5_vl.TEXT),
        "Florence2ForConditionalGeneration": Family(in_encoder=True),
        "FuyuForCausalLM": Family(arrange=tower.unpooled),
        "Gemma3ForConditionalGeneration": Family(look_ahead=gemma.items),
        "Gemma3nForConditionalGeneration": Family(text=gemma3n.TEXT),
        "Gemma4ForConditionalGeneration": Family(look_ahead=gemma.windowed_items),
        "Glm46VForConditionalGeneration": Family(rope_defaults=GLM_ROPE),
        "Glm4vForConditionalGeneration": Family(rope_defaults=GLM_ROPE),
        "Glm4vMoeForConditionalGeneration": Family(rope_defaults=GLM_ROPE),
        "GlmOcrForConditionalGeneration": Family(rope_defaults=GLM_ROPE),
        "HyperCLOVAXVisionV2ForConditionalGeneration": Family(scaled_images=True),
        "Llama4ForConditionalGeneration": Family(arrange=tower.projected),
        "LlavaNextForConditionalGeneration": Family(decoder=decoders.unscaled, scaled_images=True),
        "MiniCPMV4_7ForConditionalGeneration": Family(rope_defaults=QWEN3_5_ROPE),
        "MiniMaxM3SparseForConditionalGeneration": Family(decoder=minimax_m3.spec),
        "MllamaForConditionalGeneration": Family(
            decoder=mllama.decoder,
            cross_positions=mllama.cross_positions,
            features=mllama.features,
        ),
        "Molmo2ForConditionalGeneration": Family(
            look_ahead=molmo2.all_items,
            marks=molmo2.token_ids,
            arrange=molmo2.arrange,
            text=molmo2.TEXT,
        ),
        "Ovis2ForConditionalGeneration": Family(marks=ovis2.token_ids, arrange=ovis2.arrange),
        "PaddleOCRVLForConditionalGeneration": Family(rope_defaults=QWEN2_ROPE),
        "PaliGemmaForConditionalGeneration": Family(
            look_ahead=gemma.prompt, decoder=gemma.prefix_decoder
        ),
        "Phi4MultimodalForCausalLM": Family(
            placeholder=phi4_multimodal.placeholder,
            unused=phi4_multimodal.UNUSED,
            features=phi4_multimodal.features,
        ),
        "Qwen2_5_VLForConditionalGeneration": Family(rope_defaults=QWEN2_ROPE),
        "Qwen2VLForConditionalGeneration": Family(rope_defaults=QWEN2_ROPE),
        "Qwen3_5ForConditionalGeneration": Family(rope_defaults=QWEN3_5_ROPE),
        "Qwen3_5MoeForConditionalGeneration": Family(rope_defaults=QWEN3_5_ROPE),
        "Qwen3VLForConditionalGeneration": Family(rope_defaults=QWEN3_ROPE),
        "Qwen3VLMoeForConditionalGeneration": Family(
            rope_defaults=QWEN3_ROPE, decoder=decoders.qwen3_vl_moe
        ),
    }
)
"""The families of all native entries; `Family()` is tried for others."""
