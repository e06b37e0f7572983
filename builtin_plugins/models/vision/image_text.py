"""An image-text model with a text part that runs through transformers' own modules.

It is for text parts without a native decoder: unsharded, unquantized and slower than one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import torch

from builtin_plugins.models.generic.model import GenericModel, GivenHidden
from builtin_plugins.models.generic.module_spec import GenericSpec
from builtin_plugins.models.vision.tower import TransformersTower, TransformersTowerSpec
from core.api.models import BuildContext, ForwardBatch
from core.model_spec.tower import MULTIMODAL


@dataclass(frozen=True, slots=True)
class TextPart:
    """How a text part of transformers' own modules is run."""

    inputs: Callable[[Any, Any, ForwardBatch], Mapping[str, torch.Tensor]] | None = None
    """Returns inputs [num_tokens, ...] besides embeddings and positions, of (config, text model,
    batch).
    """
    prepare: Callable[[Any], None] | None = None
    """Changes the modules of a loaded model."""
    vocab_size: Callable[[Any], int] | None = None
    """Returns the number of tokens of prompts, of a config; None: that of the head."""


UNCHANGED: Final = TextPart()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTextSpec(GenericSpec):
    """An image-text model that is served through its own modules."""

    tower: TransformersTowerSpec
    text: TextPart = UNCHANGED

    @property
    def hidden_size(self) -> int:
        """Size of an embedding."""
        size: int = self.config.get_text_config().hidden_size
        return size

    def _model(self, context: BuildContext) -> ImageTextModel:
        return ImageTextModel(self, context)


class ImageTextModel(GenericModel):
    """Language model and tower of one transformers model."""

    def __init__(self, spec: ImageTextSpec, context: BuildContext) -> None:
        super().__init__(spec.config, spec.model_class, spec.max_positions, context)
        self.spec = spec
        self.vocab_size = spec.vocab_size
        self.tower = TransformersTower(spec.tower, context)
        self._deepstack: Sequence[torch.Tensor] = ()

    @property
    def facts(self) -> dict[str, bytes]:
        """Facts of the tower for admission extensions."""
        return {MULTIMODAL: msgspec.msgpack.encode(self.tower.facts)}

    def embedded(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return token embeddings [n, hidden], as the language model reads them."""
        embed: Any = self.base.get_input_embeddings()  # type: ignore[operator]
        found: torch.Tensor = embed(token_ids)
        return found

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Return hidden states [num_tokens, hidden]."""
        self._layers.begin(batch.attention)
        self._deepstack = batch.deepstack
        tokens = batch.input_ids if batch.embeddings is None else batch.embeddings
        positions = batch.rope_positions
        positions = batch.positions + self._first if positions is None else positions
        inputs = self.spec.text.inputs
        more = {} if inputs is None else inputs(self.spec.config, self.base, batch)
        return self._hidden(tokens, positions, **more)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [n, vocab] in float32; tokens of prompts only are never sampled."""
        found = super().logits(hidden)
        missing = self.spec.vocab_size - found.shape[-1]
        if not missing:
            return found
        return torch.nn.functional.pad(found, (0, missing), value=float("-inf"))

    def _set_parts(self, model: Any) -> None:
        """Set `base` and the tower."""
        whole = model.model
        if self.spec.text.prepare is not None:
            self.spec.text.prepare(whole)
        self.base = whole.get_decoder()
        self.tower.set_model(model, has_text=True)
        model.model = GivenHidden(whole)
        layers: Any = self.base.layers
        for index, layer in enumerate(layers):
            layer.register_forward_hook(partial(self._add_deepstack, index))

    def _add_deepstack(self, index: int, layer: object, inputs: object, output: Any) -> Any:
        """Return a layer's output, with what a step adds to it."""
        if index >= len(self._deepstack):
            return output
        return output + self._deepstack[index]
