"""Tests every architecture in a tiny size and writes its features for `engine models`.

Run after adding an architecture, then `make docs`: python scripts/survey_models.py. With
`--images`, only models that read images are tried: of these, transformers' default config is read.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from safetensors.torch import load_file
from transformers.models.auto import modeling_auto

from builtin_plugins.commands.models.command import ANY, TABLE, read_table
from builtin_plugins.models.generic.module_spec import why_not
from builtin_plugins.models.generic.spec import spec
from builtin_plugins.models.vision import spec as vision
from builtin_plugins.models.vision.families import FAMILIES
from core.errors import EngineError
from core.model_spec.decoder import DecoderSpec
from core.model_spec.kv import RecurrentState
from core.models.layers.decoder import Decoder
from core.models.layers.linear import Linear
from core.plugin import Registry, load_plan, make_plan
from core.plugin.discovery import discover
from core.testing.checkpoints import make_checkpoint, tiny_config
from core.testing.one_sequence import plain_context, read_config
from core.testing.shrunken import causal_types

LAYER = re.compile(r"\.\d+\.")
SMALLEST = 12
"""Minimum rows and columns of a linear layer in a tiny model; routers have fewer."""

UNSERVED: Final = {
    "BertSpladeSparseEmbeddingModel": "no pooler gives sparse vectors",
    "EvollaForProteinText2Text": "it reads proteins",
    "GritLM": "it embeds with bidirectional attention; MistralForCausalLM generates with it",
}
"""Architectures without a class that writes text from text or images, and why: none is served."""

REASONS: Final = {
    "BltForCausalLM": "it writes patches of bytes, which another model ends",
    "CpmAntForCausalLM": "each token attends to later ones",
    "Gemma4AssistantForCausalLM": "it drafts for Gemma 4, and reads its KV cache",
    "Gemma4UnifiedAssistantForCausalLM": "it drafts for Gemma 4, and reads its KV cache",
    "MossTranscribeDiarizeForConditionalGeneration": "it reads sound",
    "MusicgenForCausalLM": "it writes codes of sound",
    "MusicgenMelodyForCausalLM": "it writes codes of sound",
    "ProphetNetForCausalLM": "its logits are those of a second stream of queries per token",
    "ReformerModelWithLMHead": "it hashes all keys of a text with random rotations",
    "XLMWithLMHeadModel": "it predicts a masked token at the end of the prompt",
    "XLNetLMHeadModel": "each token attends to later ones",
}
"""Why a class of transformers is not served, where its config and modules do not tell."""

VLLM_ONLY: Final = (
    "BagelForConditionalGeneration",
    "BeeForConditionalGeneration",
    "DeepseekOCRForCausalLM",
    "DeepseekVLV2ForCausalLM",
    "DotsOCRForCausalLM",
    "GLM4VForCausalLM",
    "H2OVLChatModel",
    "HCXVisionForCausalLM",
    "InternS1ForConditionalGeneration",
    "KeyeForConditionalGeneration",
    "KeyeVL1_5ForConditionalGeneration",
    "KimiVLForConditionalGeneration",
    "Llama_Nemotron_Nano_VL",
    "MantisForConditionalGeneration",
    "MiniCPMO",
    "MiniCPMV",
    "MiniMaxVL01ForConditionalGeneration",
    "MolmoForCausalLM",
    "NVLM_D",
    "NemotronH_Nano_VL_V2",
    "OpenCUAForConditionalGeneration",
    "Ovis2_5",
    "Phi3VForCausalLM",
    "PixtralForConditionalGeneration",
    "QwenVLForConditionalGeneration",
    "RForConditionalGeneration",
    "SkyworkR1VChatModel",
    "Step3VLForConditionalGeneration",
    "Tarsier2ForConditionalGeneration",
    "TarsierForConditionalGeneration",
)
"""Models that read images in vLLM, and that transformers has no class for."""
RENAMED: Final = {
    "InternVLChatModel": "InternVLForConditionalGeneration",
    "LightOnOCRForConditionalGeneration": "LightOnOcrForConditionalGeneration",
    "Ovis": "Ovis2ForConditionalGeneration",
}
"""The same, where transformers has the model by another name."""
OMNI: Final = (
    "Qwen2_5OmniForConditionalGeneration",
    "Qwen2_5OmniModel",
    "Qwen3OmniMoeForConditionalGeneration",
)
"""Models that write sound, too, around a thinker of their own class."""


def survey() -> dict[str, dict[str, Any]]:
    """Return a row per native architecture and per causal language model of transformers."""
    third_party = [f"no:{ref.name}" for ref in discover() if not ref.builtin]
    registry = load_plan(make_plan(third_party))
    types: dict[str, list[str]] = {}
    for model_type, name in causal_types().items():
        types.setdefault(name, []).append(model_type)
    native = {r.entry.name: r for r in registry.entries("models") if ANY not in r.entry.gives}
    table = {}
    for name in sorted({*types, *native}):
        kinds = types.get(name, [])
        facts = of_native(registry, native[name]) if name in native else of_generic(kinds)
        table[name] = {
            "model_types": kinds,
            "tried": "native" if name in native else "generic",
            **facts,
        }
    for name, row in table.items():
        if row.get("reason") and name in REASONS:
            row["reason"] = REASONS[name]
    for name, reason in UNSERVED.items():
        table[name] = {"model_types": [], "tried": "generic", "reason": reason}
    return table


def of_native(registry: Registry, registered: Any) -> dict[str, Any]:
    """Return the features of a native architecture; empty without a tiny model."""
    try:
        config = json.loads(tiny_config(registered.entry.name).to_json_string())
        spec = registry.load(registered)(_Fields(config))
        made = (
            Decoder(spec, plain_context())
            if isinstance(spec, DecoderSpec)
            else spec.build(plain_context())
        )
    except (EngineError, AttributeError, TypeError, ValueError) as error:
        sys.stderr.write(f"{registered.entry.name}: not tried ({error})\n")
        return {}
    splits = hasattr(spec, "check_split")
    return {
        **_layer_kinds(made),
        "quantization": any(isinstance(part, Linear) for part in made.modules()),
        "tensor_parallel": splits and _splits(spec),
        "pooling": isinstance(spec, DecoderSpec) or hasattr(spec, "pooling"),
        "lora_targets": _linear_layers(dict(made.weight_shapes()))
        if hasattr(made, "weight_shapes")
        else [],
    }


def of_generic(model_types: list[str]) -> dict[str, Any]:
    """Return the features of a generic architecture, or the reason why it is not served."""
    reason = ""
    for model_type in model_types:
        try:
            config = tiny_config(model_type)
            refused = why_not(config, getattr(transformers, causal_types()[model_type]))
            if refused is not None:
                return {"reason": refused}
            with tempfile.TemporaryDirectory() as folder:
                make_checkpoint(model_type, folder)
                tensors = load_file(Path(folder) / "model.safetensors")
                made: Any = spec(read_config(folder)).build(plain_context())
            with torch.inference_mode():
                made.load_weights(tensors.items())
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            reason = (
                str(error).partition("\n")[0] if isinstance(error, EngineError) else _short(error)
            )
            continue
        linear = [
            n
            for n, part in made.named_modules()
            if isinstance(part, torch.nn.Linear) and LAYER.search(n)
        ]
        return {
            **_layer_kinds(made),
            "quantization": False,
            "tensor_parallel": False,
            "pooling": False,
            "lora_targets": sorted({name.rpartition(".")[2] for name in linear}),
        }
    return {"reason": reason}


def survey_images() -> dict[str, dict[str, Any]]:
    """Return a row per model of transformers that reads images and writes text."""
    types: dict[str, list[str]] = {}
    for model_type, names in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items():
        name = names if isinstance(names, str) else names[0]
        if vision.is_image_text(name) or not name.endswith("ForCausalLM"):
            types.setdefault(name, []).append(model_type)
    table = {}
    for name in sorted(types):
        facts = of_images(types[name][0], name)
        table[name] = {"model_types": types[name], "tried": "images", **facts}
    no_class = "transformers 5.23 has no such class, and a checkpoint's own code is not run"
    reasons = {
        **dict.fromkeys(VLLM_ONLY, no_class),
        **{old: f"{no_class}; serve it as {new}" for old, new in RENAMED.items()},
        **dict.fromkeys(OMNI, "it writes sound, too, and its thinker is not served"),
    }
    for name, reason in reasons.items():
        table[name] = {"model_types": [], "tried": "images", "images": False, "reason": reason}
    return table


def of_images(model_type: str, name: str) -> dict[str, Any]:
    """Return the features of an architecture that reads images, or why they are not served."""
    try:
        config = transformers.CONFIG_MAPPING[model_type]().to_dict()
        found = vision.spec(_Fields({**config, "architectures": [name]}))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        if name in FAMILIES:  # tested with configs that have more than the defaults
            return {"images": True}
        text = str(error).partition("\n")[0] if isinstance(error, EngineError) else _short(error)
        return {"images": False, "reason": text}
    if isinstance(found, DecoderSpec):
        return {"images": True}
    return {"images": True, "quantization": False, "tensor_parallel": False}


class _Fields:
    """A config as an object with attributes."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)


def _layer_kinds(made: Any) -> dict[str, bool]:
    """Return the kinds of layers besides full attention."""
    specs = [layer.spec for layer in made.kv_layers]
    return {
        "sliding_window": any(hasattr(one, "window") or hasattr(one, "chunk") for one in specs),
        "running_state": any(isinstance(one, RecurrentState) for one in specs),
    }


def _splits(spec: Any) -> bool:
    try:
        spec.check_split(2, 1)
    except EngineError:
        return False
    return True


def _linear_layers(shapes: dict[str, tuple[int, ...]]) -> list[str]:
    """Return the last name parts of the weights of linear layers."""
    names = set()
    for name, shape in shapes.items():
        stem = name.removesuffix(".weight")
        if stem != name and len(shape) == 2 and min(shape) >= SMALLEST and LAYER.search(name):
            names.add(stem.rpartition(".")[2])
    return sorted(names)


def _short(error: Exception) -> str:
    return f"transformers cannot make it from its config: {' '.join(str(error).split())}"[:200]


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", action="store_true")
    rows = read_table() if parser.parse_args().images else survey()
    for name, row in survey_images().items():
        is_text = name in causal_types().values()
        rows[name] = {**rows[name], "images": row["images"]} if is_text else row
    rows = dict(sorted(rows.items()))
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    TABLE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
