"""The tower of a transformers model: everything but its language model, loaded by transformers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from builtin_plugins.models.generic.loading import fill, without_memory
from core.api.models import BuildContext
from core.model_spec.tower import EncodedItem, RopePositions, TowerFacts

Arrange = Callable[[Any, Any, Mapping[str, torch.Tensor]], torch.Tensor]
"""(modules, their output, inputs of an item) to embeddings in the order of its tokens."""
Features = Callable[[Any], Callable[..., Any]]
"""Modules to the function that encodes their images."""
TOKEN_TYPES: Final = {"image": 1, "video": 2}
"""transformers' numbers of placeholder tokens, by modality."""
TEXT_PARTS: Final = ("language_model", "text_model")
"""Names of the language model in models of transformers."""
SMALLEST_TEXT: Final = {
    "num_hidden_layers": 0,
    "encoder_layers": 0,
    "decoder_layers": 0,
    "num_kv_shared_layers": 0,
    "layer_types": [],
    "per_layer_config": {},
    "vocab_size": 8,
    "hidden_size_per_layer_input": 0,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": None,
}
"""Fields of a text config without layers: the decoder has its weights."""


def projected(base: Any, output: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return features after the projector, which Llama 4's leave out."""
    found: torch.Tensor = base.multi_modal_projector(output.last_hidden_state.flatten(0, 1))
    return found


def unpooled(base: Any, output: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return features of a tower without a pooler (Fuyu)."""
    found: torch.Tensor = output.last_hidden_state
    return found


def image_features(base: Any) -> Callable[..., Any]:
    """Return what transformers calls image features."""
    found: Callable[..., Any] = base.get_image_features
    return found


@dataclass(frozen=True, slots=True)
class TransformersTowerSpec:
    """The tower of a model class of transformers."""

    config: Any
    model_class: Any
    facts: TowerFacts
    arrange: Arrange | None = None
    """Puts an item's embeddings in the order of its tokens; None: they are in this order."""
    features: Features = image_features
    """Returns the function that encodes images, of the tower's modules."""
    scale: float = 1.0
    """Factor on its embeddings."""
    prefix: str = ""
    """Of its tensors in the checkpoint."""
    unused: tuple[str, ...] = ()
    """Modules besides the language model that are not loaded."""
    one_axis: bool = False
    """Whether positions have one axis, also of a class with M-RoPE."""

    def build(self, context: BuildContext) -> TransformersTower:
        """Return the tower; `load_weights` constructs its modules."""
        tower = TransformersTower(self, context)
        if context.device == "meta":
            small = _without_text(self.config)
            tower.set_model(without_memory(self.model_class, small, context.dtype))
        return tower


class TransformersTower(nn.Module):
    """A transformers model without its language model."""

    def __init__(self, spec: TransformersTowerSpec, context: BuildContext) -> None:
        super().__init__()
        self.facts = spec.facts
        self._spec = spec
        self._context = context
        self.base: Any = None

    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return name and shape of its tensors, as transformers stores them."""
        small = _without_text(self._spec.config)
        model = without_memory(self._spec.model_class, small, torch.float32)
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        own = {name: shape for name, shape in shapes.items() if not self._is_absent(name)}
        return {f"{self._spec.prefix}{name}": shape for name, shape in own.items()}

    def load_weights(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Construct and load the modules; for a memory plan they have shapes already."""
        if self._context.device == "meta":
            return
        spec = self._spec
        dtype = self._context.dtype
        small = _without_text(spec.config)
        named = ((name.removeprefix(spec.prefix), tensor) for name, tensor in tensors.items())
        model = fill(spec.model_class, small, named, dtype, self._is_absent)
        self.set_model(model.to(self._context.device).eval().requires_grad_(requires_grad=False))

    def set_model(self, model: Any, *, has_text: bool = False) -> None:
        """Set the modules: all of the model but its language model, which is removed from it.

        `has_text`: it was not made without the layers of its text part.
        """
        self.base = getattr(model, "model", model)
        for name in TEXT_PARTS:  # the decoder has the text's weights
            if hasattr(self.base, name):
                setattr(self.base, name, nn.Module())
        for name in self._spec.unused:
            self.base.set_submodule(name, nn.Module())
        if not has_text:
            self.base.config = self._spec.config
        self._features = {"image": self._spec.features(self.base)}
        self._reads = {
            modality: _parameters(function) for modality, function in self._features.items()
        }

    def _is_absent(self, name: str) -> bool:
        """Return whether a tensor is not the tower's."""
        unused = tuple(f"model.{part}." for part in self._spec.unused)
        return _is_text(name) or name.startswith(unused)

    def encode(self, modality: str, inputs: Mapping[str, torch.Tensor]) -> EncodedItem:
        """Return one item encoded."""
        reads = self._reads[modality]
        dtype = self._context.dtype
        given = {
            name: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for name, tensor in inputs.items()
            if name in reads
        }
        out = self._features[modality](**given, return_dict=True)
        deepstack = getattr(out, "deepstack_features", None) or ()
        arrange = self._spec.arrange
        features = out.pooler_output if arrange is None else arrange(self.base, out, inputs)
        num_padding = getattr(out, "num_padding", 0)
        rows = _rows(features) * self._spec.scale
        return EncodedItem(rows, tuple(map(_rows, deepstack)), num_padding)

    def rope_positions(
        self, token_ids: Sequence[int], items: Iterable[tuple[str, Mapping[str, torch.Tensor]]]
    ) -> RopePositions | None:
        """Return the positions that transformers gives a prompt with items, if it has M-RoPE."""
        indexer = getattr(self.base, "get_rope_index", None)
        if indexer is None or self._spec.one_axis:
            return None
        tokens = torch.tensor([list(token_ids)])
        types = torch.zeros_like(tokens)
        for modality, token in self.facts.placeholders.items():
            types[tokens == token] = TOKEN_TYPES[modality]
        merged: dict[str, list[torch.Tensor]] = {}
        for _, inputs in items:
            for name, tensor in inputs.items():
                merged.setdefault(name, []).append(tensor.cpu())
        known = _parameters(indexer) - {"pixel_values"}
        given = {name: torch.cat(parts) for name, parts in merged.items() if name in known}
        positions, shift = indexer(tokens, mm_token_type_ids=types, **given)
        return RopePositions(positions[:, 0], int(shift[0]))


def _without_text(config: Any) -> Any:
    """Return the config with a text part without layers."""
    small = deepcopy(config)
    text = small.get_text_config()
    for name, value in SMALLEST_TEXT.items():
        setattr(text, name, value)
    # It is of the text part, and those weights are not loaded here.
    small.__dict__.pop("quantization_config", None)
    return small


def _is_text(name: str) -> bool:
    return name.startswith("lm_head.") or any(f"{part}." in name for part in TEXT_PARTS)


def _parameters(function: Any) -> frozenset[str]:
    """Return the names of a function's parameters; decorators hide some of them."""
    names = set(inspect.signature(function).parameters)
    return frozenset({*names, "pixel_values"} - {"kwargs"})


def _rows(features: torch.Tensor | Iterable[torch.Tensor]) -> torch.Tensor:
    """Return features [rows, hidden] of nested or batched ones."""
    if not isinstance(features, torch.Tensor):
        features = torch.cat([_rows(part) for part in features])
    return features.reshape(-1, features.shape[-1]).clone()
