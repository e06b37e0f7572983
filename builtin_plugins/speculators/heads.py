"""Base class of heads: they read the target's hidden states and share its embedding and head."""

from __future__ import annotations

import fnmatch
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from builtin_plugins.speculators.checkpoints import HEAD_ARCHITECTURE, find_checkpoint
from builtin_plugins.speculators.hidden_states import HiddenStateHistory
from core.api import ConfigError
from core.model_spec.decoder import DecoderSpec
from core.models.layers.decoder import Decoder
from core.models.layers.loading import weight_loader
from core.models.layers.weights import check_finite

if TYPE_CHECKING:
    from builtin_plugins.speculators.contract import DraftRow, SpeculativeConfig
    from core.api import EngineConfig, Registry
    from core.api.execution import LoadedParts, WorkerParts
    from core.api.models import ForwardBatch, ModelSource
    from core.model_spec.kv import LayerKV
    from core.models.layers.weights import WeightMap


class HeadSpeculator(ABC):
    """Keeps hidden states and loads a head, which a subclass builds."""

    is_lookup = False
    supports_trees = True

    def __init__(
        self, config: EngineConfig, settings: SpeculativeConfig, registry: Registry
    ) -> None:
        self._config = config
        self._settings = settings
        self._registry = registry
        self._history = HiddenStateHistory()

    def loaded(self, parts: LoadedParts) -> Sequence[LayerKV]:
        """Build and load the head. Raises `ConfigError` for an unsupported target."""
        if not isinstance(parts.model, Decoder):
            raise ConfigError(
                f"--speculative-config.method {self._settings.method!r}: got the model "
                f"{parts.source.name}; expected one built from `Decoder`. Use ngram, suffix or "
                "draft_model."
            )
        self._target = parts.model
        with torch.device(parts.context.device):
            return self._build(parts, parts.model.spec)

    @abstractmethod
    def _build(self, parts: LoadedParts, spec: DecoderSpec) -> Sequence[LayerKV]:
        """Build the head on the target's device. Return its KV layers."""

    def attach(self, parts: WorkerParts) -> None:
        """Remember the batch."""
        self._batch = parts.batch
        self._device = parts.device

    def on_hidden_states(self, batch: ForwardBatch, hidden: torch.Tensor) -> None:
        """Add a step's hidden states to the history."""
        owners = [self._batch.requests[row] for row in batch.rows]
        self._history.add(batch, owners, hidden)

    def _last_hidden(self, rows: Sequence[DraftRow]) -> tuple[list[int], torch.Tensor | None]:
        """Return the rows with a known hidden state of their second last token, and the states."""
        indices = []
        states = []
        for index, row in enumerate(rows):
            end = len(row.tokens) - 1
            _, hidden = self._history.states(row.row, row.owner, end - 1, end)
            if hidden is not None:
                indices.append(index)
                states.append(hidden)
        return indices, torch.cat(states) if states else None

    def _checkpoint(self) -> tuple[ModelSource, Mapping[str, Any]]:
        """Return the head's checkpoint and its config.json. Raises `ConfigError`."""
        if not self._settings.model:
            raise ConfigError(
                f"--speculative-config: the method {self._settings.method} needs a `model`, the "
                "folder or hub id of its head."
            )
        found = find_checkpoint(self._config, self._settings, self._registry)
        return found, vars(found.hf_config)

    def _stored_shapes(self, source: ModelSource) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of a checkpoint's tensors, by name."""
        loader = weight_loader(self._config, source, self._registry)
        listed = getattr(loader, "headers", loader.tensors)
        return {name: tuple(tensor.shape) for name, tensor in listed()}

    def _decoder_spec(
        self,
        config: Mapping[str, Any],
        *,
        architecture: str = HEAD_ARCHITECTURE,
        **changes: Any,
    ) -> DecoderSpec:
        """Return the spec of a config.json, by default a Llama-like one, with the target's context
        length.

        Raises `ModelError`.
        """
        entries = {
            registered.entry.name: registered for registered in self._registry.entries("models")
        }
        defaults = {"vocab_size": self._target.vocab_size, "num_hidden_layers": 1}
        fields = SimpleNamespace(**{**defaults, **config, **changes})
        spec: DecoderSpec = self._registry.load(entries[architecture])(fields)
        return replace(spec, max_positions=self._target.spec.max_positions)

    def _load_weights(
        self, weights: WeightMap, source: ModelSource, patterns: Sequence[str] = ("*",)
    ) -> None:
        """Load the tensors of a checkpoint with names that match any of the patterns."""
        loader = weight_loader(self._config, source, self._registry)
        expect = getattr(loader, "expect", None)
        if expect is not None:
            expect(weights.shapes())
        checked = check_finite(loader.tensors(), loader, source.path or source.name)
        weights.load(_matching(checked, patterns))


def _matching(
    tensors: Iterator[tuple[str, torch.Tensor]], patterns: Sequence[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in tensors:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            yield name, tensor
