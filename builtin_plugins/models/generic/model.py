"""A causal model of transformers as the engine drives it: built, filled and run by transformers,
attention by us.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from builtin_plugins.models.generic import attention, trial
from builtin_plugins.models.generic.attention import PagedLayers
from builtin_plugins.models.generic.loading import fill, quiet, weight_shapes, without_memory
from core.api import BuildContext, ForwardBatch, LayerKV, ModelError


class GenericModel(nn.Module):
    """Satisfies `core.contracts.Model`; what it keeps per layer is known once the weights are in."""

    def __init__(
        self, config: Any, model_class: Any, max_positions: int, context: BuildContext
    ) -> None:
        super().__init__()
        self.vocab_size: int = config.get_text_config().vocab_size
        self._max_positions = max_positions
        self._first = 0
        """The position of a text's first token; some models leave out those of padding."""
        self.kv_layers: Sequence[LayerKV] = ()
        self._config = config
        self._class = model_class
        self._context = context
        self._layers: PagedLayers
        self.base: nn.Module
        """Everything up to the hidden states."""
        self.head: nn.Module
        """The model around `base`, which turns hidden states into logits as it sees fit."""
        if context.device == "meta":
            self._sketch()

    def _sketch(self) -> None:
        """Find out without weights and memory what would be kept, for a plan; the trial is left to
        loading.
        """
        try:
            self._take(without_memory(self._class, self._config, self._context.dtype))
            calls = trial.sketched_calls(self._hidden, self.base)
        except Exception as error:
            raise ModelError(
                f"what {self._class.__name__} keeps is known only once it is loaded "
                f"({type(error).__name__}: {error})."
            ) from error
        self.kv_layers = [trial.paged_layer(index, call).kv for index, call in enumerate(calls)]

    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return name and shape of every tensor; only loaders that make tensors up ask."""
        return weight_shapes(self._class, self._config)

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Build and fill the modules, then try them.

        Raises `ModelError` naming tensors, or what cannot be served.
        """
        self._take(
            fill(self._class, self._config, tensors, self._context.dtype).to(self._context.device)
        )
        try:
            padding = getattr(self._config.get_text_config(), "pad_token_id", None) or 0
            self._first, calls = trial.record(self._hidden, self.base, (0, padding + 1))
            self._check_context()
            layers = [trial.paged_layer(index, call) for index, call in enumerate(calls)]
            self.logits(self._hidden(torch.tensor([1]), torch.tensor([0])))
        except ModelError as error:
            raise ModelError(f"{self._class.__name__} runs in transformers, but {error}") from error
        except Exception as error:
            raise ModelError(
                f"{self._class.__name__} does not run on the engine's batches: "
                f"{type(error).__name__}: {error}."
            ) from error
        self._layers = PagedLayers(self._context.attention, layers)
        self.kv_layers = [layer.kv for layer in layers]
        for module in self.base.modules():
            setattr(module, attention.ATTRIBUTE, self._layers)
        self._choose(attention.PAGED)

    def _take(self, model: Any) -> None:
        """Keep a model in two parts, ready for the trial."""
        attention.register()
        trial.register()
        model.requires_grad_(requires_grad=False)
        self.base = model.model if model.base_model is model else model.base_model
        self.head = model
        place = next(name for name, part in model.named_children() if part is self.base)
        setattr(model, place, _Given(self.base))
        self._choose(trial.TRIAL)

    def _check_context(self) -> None:
        """Raise `ModelError` when the last positions that are served are beyond a table's end."""
        stated = getattr(self._config.get_text_config(), "max_position_embeddings", None) or 0
        if self._first and self._max_positions + self._first > stated > 0:
            raise ModelError(
                f"its positions start at {self._first} of {stated}; use a --max-model-len of at "
                "most "
                f"{stated - self._first}."
            )

    def _choose(self, implementation: str) -> None:
        with quiet():
            self.base.set_attn_implementation(implementation)  # type: ignore[operator]

    def bind_kv(self, caches: Sequence[torch.Tensor]) -> None:
        """Take the cache of each attention call."""
        for layer, cache in zip(self._layers.layers, caches, strict=True):
            layer.cache = cache

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Return hidden states [num_tokens, hidden]."""
        self._layers.begin(batch.attention)
        return self._hidden(batch.input_ids, batch.positions + self._first)

    def _hidden(
        self, ids: torch.Tensor, positions: torch.Tensor | None, cache: Any = None
    ) -> torch.Tensor:
        """Return hidden states of one row of tokens; without positions, transformers counts them
        from the first.
        """
        device = self._context.device
        rows = {"input_ids": ids, "position_ids": positions}
        given = {name: row.to(device)[None] for name, row in rows.items() if row is not None}
        out = self.base(
            **given, past_key_values=cache, use_cache=cache is not None, return_dict=True
        )
        return out.last_hidden_state[0]  # type: ignore[no-any-return]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [n, vocab] in float32."""
        return (
            self.head(inputs_embeds=hidden[None], use_cache=False, return_dict=True)
            .logits[0]
            .float()
        )  # type: ignore[no-any-return]


class _Hidden(BaseModelOutputWithPast):
    """Hidden states and nothing else: what a model asks for besides (router scores, caches) is
    None.
    """

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Given(nn.Module):
    """Stands where the base model was, and in all its parts: hidden states are given, not computed."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self._parts = [name for name, _ in base.named_children()]

    def __getattr__(self, name: str) -> Any:
        return self if name in self.__dict__.get("_parts", ()) else super().__getattr__(name)

    def forward(self, *_: object, inputs_embeds: torch.Tensor, **__: object) -> _Hidden:
        """Return what was given in place of embeddings."""
        return _Hidden(last_hidden_state=inputs_embeds)
