"""What all heads have in common: they read hidden states of the model, share its embedding and
head, and have weights of their own.
"""

from __future__ import annotations

import fnmatch
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from builtin_plugins.speculators.checkpoints import LAYERS, find_checkpoint
from builtin_plugins.speculators.history import History
from core.api import ConfigError, DecoderSpec
from core.models.layers.decoder import Decoder
from core.models.layers.finite import checked
from core.models.layers.loading import weight_loader

if TYPE_CHECKING:
    from core.api import (
        DraftRow,
        EngineConfig,
        ForwardBatch,
        LayerKV,
        ModelSource,
        SpeculativeConfig,
    )
    from core.contracts.scheduling import LoadedParts, WorkerParts
    from core.models.layers.weights import WeightMap


class Heads(ABC):
    """Keeps what the model makes of tokens; who guesses from it is a subclass."""

    finds = False
    branches = True

    def __init__(self, config: EngineConfig, settings: SpeculativeConfig, registry: Any) -> None:
        """Raises `ConfigError` where `model` is wanted and missing."""
        self._config = config
        self._settings = settings
        self._registry = registry
        self._history = History()

    def loaded(self, parts: LoadedParts) -> Sequence[LayerKV]:
        """Build and fill what guesses; return its caching layers.

        Raises `ConfigError` for a model it cannot continue.
        """
        if not isinstance(parts.model, Decoder):
            raise ConfigError(
                f"--speculative-config.method {self._settings.method!r} continues hidden states of "
                "a decoder; "
                f"{parts.source.name} is built otherwise. Use ngram, suffix or draft_model."
            )
        self._target = parts.model
        with torch.device(parts.context.device):
            return self._build(parts, parts.model.spec)

    @abstractmethod
    def _build(self, parts: LoadedParts, spec: DecoderSpec) -> Sequence[LayerKV]:
        """Make the modules that guess, on the device of the model; return what they keep in the
        cache.
        """

    def attach(self, parts: WorkerParts) -> None:
        """Take the rows."""
        self._batch = parts.batch
        self._device = parts.device

    def seen(self, batch: ForwardBatch, hidden: torch.Tensor) -> None:
        """Keep what the model has made of a step."""
        owners = [self._batch.requests[row] for row in batch.rows]
        self._history.note(batch, owners, hidden)

    def _last_hidden(self, rows: Sequence[DraftRow]) -> tuple[list[int], torch.Tensor | None]:
        """Return which rows have a hidden state behind the last token but one, of which the last
        was made, and those.
        """
        places = []
        found = []
        for place, asked in enumerate(rows):
            end = len(asked.tokens) - 1
            _, hidden = self._history.take(asked.row, asked.owner, end - 1, end)
            if hidden is not None:
                places.append(place)
                found.append(hidden)
        return places, torch.cat(found) if found else None

    def _checkpoint(self) -> tuple[ModelSource, Mapping[str, Any]]:
        """Return the checkpoint that `model` names, and its config.json. Raises `ConfigError`."""
        if not self._settings.model:
            raise ConfigError(
                f"--speculative-config: the method {self._settings.method} needs a `model`, the "
                "folder or hub id of its head."
            )
        found = find_checkpoint(self._config, self._settings, self._registry)
        return found, vars(found.hf_config)

    def _stored(self, source: ModelSource) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of a checkpoint's tensors by name."""
        loader = weight_loader(self._config, source, self._registry)
        listed = getattr(loader, "headers", loader.tensors)
        return {name: tuple(tensor.shape) for name, tensor in listed()}

    def _decoder(self, stated: Mapping[str, Any], **changes: Any) -> DecoderSpec:
        """Return the facts of a config.json of Llama's kind, for the context that is served.

        Raises `ModelError`.
        """
        entries = {
            registered.entry.name: registered for registered in self._registry.entries("models")
        }
        own = {"vocab_size": self._target.vocab_size, "num_hidden_layers": 1, **stated, **changes}
        spec: DecoderSpec = self._registry.load(entries[LAYERS])(SimpleNamespace(**own))
        return replace(spec, max_positions=self._target.spec.max_positions)

    def _fill(
        self, weights: WeightMap, source: ModelSource, tensors: Sequence[str] = ("*",)
    ) -> None:
        """Fill parameters from those tensors of a checkpoint that any of the patterns matches."""
        loader = weight_loader(self._config, source, self._registry)
        expect = getattr(loader, "expect", None)
        if expect is not None:
            expect(weights.shapes())
        weights.load(
            _matching(checked(loader.tensors(), loader, source.path or source.name), tensors)
        )


def _matching(
    tensors: Iterator[tuple[str, torch.Tensor]], patterns: Sequence[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in tensors:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            yield name, tensor
