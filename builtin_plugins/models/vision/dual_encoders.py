"""CLIP, SigLIP and SigLIP 2: one embedding space for texts and images, by transformers' modules.

A prompt is a text or an image. The embedding of a text is the hidden state of its last token; an
image is one placeholder token, and its input embedding is the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, Final

import msgspec
import torch
import transformers
from torch import nn

from builtin_plugins.models.generic.config import read_config
from builtin_plugins.models.generic.loading import fill, weight_shapes, without_memory
from builtin_plugins.models.generic.module_spec import GenericSpec
from core.api.models import BuildContext, ForwardBatch
from core.model_spec.facts import ModelFacts
from core.model_spec.kv import LayerKV
from core.model_spec.pooling import PoolingSpec
from core.model_spec.tower import MULTIMODAL, EncodedItem, RopePositions, TowerFacts

PADDED: Final = ("SiglipModel", "Siglip2Model")
"""Models trained with texts padded to the longest one: the last position is read."""
BUFFERS: Final = ".position_ids"
"""End of the names of buffers that old checkpoints store."""


@dataclass(frozen=True, slots=True)
class ImageTextTower:
    """The image half of a loaded model, as features see it."""

    model: ImageTextEncoder
    facts: TowerFacts

    def encode(self, modality: str, inputs: Mapping[str, torch.Tensor]) -> EncodedItem:
        """Return an image as the embedding of its placeholder."""
        del modality
        dtype = self.model.dtype
        given = {
            name: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for name, tensor in inputs.items()
        }
        found = self.model.whole.get_image_features(**given, return_dict=True)
        return EncodedItem(found.pooler_output)

    def rope_positions(
        self, token_ids: Sequence[int], items: Iterable[tuple[str, Mapping[str, torch.Tensor]]]
    ) -> RopePositions | None:
        """Return None: a prompt has positions of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTextEncoderSpec(GenericSpec):
    """A model of two encoders; the vocabulary has the placeholder of an image after its tokens."""

    bidirectional: ClassVar[bool] = True
    hidden_size: int
    """Size of an embedding."""
    pooling: PoolingSpec | None
    tower: TowerFacts

    def _model(self, context: BuildContext) -> ImageTextEncoder:  # type: ignore[override]
        return ImageTextEncoder(self, context)


class ImageTextEncoder(nn.Module):
    """Both encoders of a transformers model."""

    kv_layers: Sequence[LayerKV] = ()
    """None: a prompt is computed in one step."""

    def __init__(self, spec: ImageTextEncoderSpec, context: BuildContext) -> None:
        super().__init__()
        self.spec = spec
        self.vocab_size = spec.vocab_size
        self.dtype = context.dtype
        self.whole: Any = None
        self.tower = ImageTextTower(self, spec.tower)
        self._device = context.device
        text = spec.config.text_config
        is_padded = spec.model_class.__name__ in PADDED
        self._padded_length = text.max_position_embeddings if is_padded else 0
        self._padding = text.pad_token_id

    @property
    def facts(self) -> dict[str, bytes]:
        """Facts of the tower for admission extensions."""
        return {MULTIMODAL: msgspec.msgpack.encode(self.tower.facts)}

    def sketch(self) -> None:
        """Construct the modules without memory, for a plan."""
        self.whole = without_memory(self.spec.model_class, self.spec.config, self.dtype)

    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return name and shape of every tensor."""
        return weight_shapes(self.spec.model_class, self.spec.config)

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Construct and load the modules. Raises `ModelError`."""
        if self._device == "meta":
            return
        weights = [(name, tensor) for name, tensor in tensors if not name.endswith(BUFFERS)]
        model = fill(self.spec.model_class, self.spec.config, weights, self.dtype)
        self.whole = model.to(self._device).eval().requires_grad_(requires_grad=False)

    def bind_kv(self, caches: Sequence[torch.Tensor]) -> None:
        """There are none."""

    def embedded(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return zeros [n, hidden]: a feature sets the rows of images."""
        size = (len(token_ids), self.spec.hidden_size)
        return torch.zeros(size, dtype=self.dtype, device=token_ids.device)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Return [num_tokens, hidden]: embeddings at the last tokens of prompts."""
        ids = batch.input_ids
        images = self.embedded(ids) if batch.embeddings is None else batch.embeddings
        hidden = torch.zeros_like(images)
        ends = list(accumulate(batch.counts))
        by_length: dict[int, list[int]] = {}
        for end, count in zip(ends, batch.counts, strict=True):
            by_length.setdefault(count, []).append(end)
        for count, own in by_length.items():
            last = torch.tensor(own, device=ids.device)
            texts = ids[last[:, None] - count + torch.arange(count, device=ids.device)]
            hidden[last - 1] = self._text_features(texts)
        # An image has been computed as a text, too: which one it is, is known on the device only.
        is_image = (ids == self.spec.vocab_size - 1).unsqueeze(-1)
        return torch.where(is_image, images, hidden)

    def pooled(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 [n, hidden]: there are no layers after the pooler."""
        return hidden.float()

    def _text_features(self, texts: torch.Tensor) -> torch.Tensor:
        """Return embeddings [n, hidden] of texts [n, length]."""
        texts = texts.clamp(max=self.spec.vocab_size - 2)
        missing = self._padded_length - texts.shape[1]
        if missing > 0:
            texts = nn.functional.pad(texts, (0, missing), value=self._padding)
        found: torch.Tensor = self.whole.get_text_features(texts, return_dict=True).pooler_output
        return found


def spec(hf_config: Any) -> ImageTextEncoderSpec:
    """Return the spec of a CLIP, SigLIP or SigLIP 2 config. Raises `ModelError`."""
    architecture = str(ModelFacts(hf_config).required("architectures")[0])
    config = read_config(hf_config)
    text = config.text_config
    size = getattr(config, "projection_dim", None) or getattr(text, "projection_size", None)
    placeholder = text.vocab_size
    return ImageTextEncoderSpec(
        config=config,
        model_class=getattr(transformers, architecture),
        vocab_size=placeholder + 1,
        hidden_size=size or text.hidden_size,
        max_positions=text.max_position_embeddings,
        learned_positions=text.max_position_embeddings,
        pooling=PoolingSpec(task="embed", pooler="last"),
        tower=TowerFacts({"image": placeholder}, whole_prompt=True),
    )
