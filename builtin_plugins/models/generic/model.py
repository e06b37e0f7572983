"""A causal model that transformers constructs, loads and runs, with the engine's attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from builtin_plugins.models.generic import attention, key_bias, trial
from builtin_plugins.models.generic.attention import PagedLayers
from builtin_plugins.models.generic.loading import fill, quiet, weight_shapes, without_memory
from core.api import ModelError
from core.api.models import BuildContext, ForwardBatch
from core.model_spec.kv import LayerKV


class GenericModel(nn.Module):
    """A transformers model as `core.contracts.Model`; its cache specs are known after loading."""

    def __init__(
        self, config: Any, model_class: Any, max_positions: int, context: BuildContext
    ) -> None:
        super().__init__()
        self.vocab_size: int = config.get_text_config().vocab_size
        self._max_positions = max_positions
        self._first = 0
        """Position of a text's first token; some models start after the padding position."""
        self.kv_layers: Sequence[LayerKV] = ()
        self._config = config
        self._class = model_class
        self._context = context
        self._layers: PagedLayers
        self.base: nn.Module
        """Everything up to the hidden states."""
        self.head: nn.Module
        """The model around `base`, which maps hidden states to logits."""

    def sketch(self) -> None:
        """Find the cache specs on the meta device, for a plan; the trial runs at loading."""
        try:
            self._split(without_memory(self._class, self._config, self._context.dtype))
            calls = trial.attention_calls_on_meta(self._hidden, self.base)
        except Exception as error:
            raise ModelError(
                f"the KV cache of {self._class.__name__} is known only after loading "
                f"({type(error).__name__}: {error})."
            ) from error
        self.kv_layers = [trial.paged_layer(index, call).kv for index, call in enumerate(calls)]

    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return name and shape of every tensor, for loaders that generate tensors."""
        return weight_shapes(self._class, self._config)

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Construct and load the modules, then run the trial.

        Raises `ModelError` for wrong tensors and for models that cannot be served.
        """
        self._split(
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
        self._set_attention(attention.PAGED)

    def _split(self, model: Any) -> None:
        """Split a model into `base` and `head`, with the trial's attention."""
        attention.register()
        trial.register()
        key_bias.install(model)
        model.requires_grad_(requires_grad=False)
        self.head = model
        self._set_parts(model)
        self._set_attention(trial.TRIAL)

    def _set_parts(self, model: Any) -> None:
        """Set `base`, and give its place in the model to hidden states."""
        self.base = model.model if model.base_model is model else model.base_model
        attribute = next(name for name, part in model.named_children() if part is self.base)
        setattr(model, attribute, GivenHidden(self.base))

    def _check_context(self) -> None:
        """Raise `ModelError` if the served positions exceed a position embedding."""
        stated = getattr(self._config.get_text_config(), "max_position_embeddings", None) or 0
        if self._first and self._max_positions + self._first > stated > 0:
            raise ModelError(
                f"--max-model-len: got {self._max_positions}; expected up to "
                f"{stated - self._first}, because positions start at {self._first} of {stated}."
            )

    def _set_attention(self, implementation: str) -> None:
        with quiet():
            self.base.set_attn_implementation(implementation)  # type: ignore[operator]

    def bind_kv(self, caches: Sequence[torch.Tensor]) -> None:
        """Set the cache of each attention call."""
        for layer, cache in zip(self._layers.layers, caches, strict=True):
            layer.cache = cache

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Return hidden states [num_tokens, hidden]."""
        self._layers.begin(batch.attention)
        return self._hidden(batch.input_ids, batch.positions + self._first)

    def _hidden(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor | None,
        cache: Any = None,
        **inputs: torch.Tensor,
    ) -> torch.Tensor:
        """Return hidden states of one sequence of token ids [n] or embeddings [n, hidden].

        Without `positions` ([n] or [axes, n]), transformers counts them. `inputs` are others of
        the model, [n, ...].
        """
        device = self._context.device
        name = "inputs_embeds" if tokens.is_floating_point() else "input_ids"
        given = {name: value[None] for name, value in inputs.items()}
        given[name] = tokens.to(device)[None]
        if positions is not None:
            given["position_ids"] = positions.to(device).unsqueeze(-2)
        out = self.base(
            **given, past_key_values=cache, use_cache=cache is not None, return_dict=True
        )
        return out.last_hidden_state[0]  # type: ignore[no-any-return]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [n, vocab] in float32."""
        out = self.head(inputs_embeds=hidden[None], use_cache=False, return_dict=True)
        return out.logits[0].float()  # type: ignore[no-any-return]


class _Hidden(BaseModelOutputWithPast):
    """Output with hidden states only; other attributes (router scores, caches) are None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class GivenHidden(nn.Module):
    """Replaces the base model and its parts, with its values: returns given hidden states."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self._parts = [name for name, _ in base.named_children()]
        self._values = {name: value for name, value in vars(base).items() if name[0] != "_"}

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("_parts", ()):
            return self
        values: dict[str, Any] = self.__dict__.get("_values", {})
        return values[name] if name in values else super().__getattr__(name)

    def forward(self, *_: object, inputs_embeds: torch.Tensor, **__: object) -> _Hidden:
        """Return the given hidden states."""
        return _Hidden(last_hidden_state=inputs_embeds)
