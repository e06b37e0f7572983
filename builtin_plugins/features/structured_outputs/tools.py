"""What masks are made with: the model's tokens, what tells its thoughts from answers, the backends."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from builtin_plugins.features.structured_outputs.rows import TokenMasks
from builtin_plugins.features.structured_outputs.settings import StructuredOutputsConfig
from core.api import (
    EngineConfig,
    ReasoningFormat,
    RequestFailed,
    Vocabulary,
    fitted,
    read_vocabulary,
)

if TYPE_CHECKING:
    from core.api import GrammarBackend, Tokenizer


class Tools:
    """Made once and used by all keepers; each part is read when first needed."""

    def __init__(self, config: EngineConfig, registry: Any) -> None:
        self.settings = StructuredOutputsConfig.of(config)
        self._config = config
        self._registry = registry
        self._backends: dict[str, GrammarBackend] = {}

    def warm_up(self) -> None:
        """Read everything that requests usually need."""
        for name in backends(self.settings, self._registry)[:1]:
            self.backend(name)
        self.reasoning, self.masks  # noqa: B018 - reading them makes them

    def backend(self, name: str) -> GrammarBackend:
        """Return a backend for the model's vocabulary."""
        if name not in self._backends:
            self._backends[name] = self.backend_class(name)(self.vocabulary)
        return self._backends[name]

    def backend_class(self, name: str) -> type[GrammarBackend]:
        """Return what can check constraints without a vocabulary."""
        found: type[GrammarBackend] = self._registry.load(
            self._registry.choose("grammar_backends", name)
        )
        return found

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        mode = self._config.model.tokenizer_mode
        name = self._source.tokenizer if mode == "auto" else mode
        made: Tokenizer | None = self._registry.load(self._registry.choose("tokenizers", name))(
            self._source, self._config
        )
        if made is None or self._config.model.skip_tokenizer_init:
            raise RequestFailed(
                "structured_outputs: there is no tokenizer, so no token is known to stand for a "
                "text."
            )
        return made

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """What its tokens stand for."""
        ends = self._source.eos_token_ids
        if not ends and self.tokenizer.eos_token_id is not None:
            ends = (self.tokenizer.eos_token_id,)
        return read_vocabulary(self.tokenizer, ends)

    @cached_property
    def masks(self) -> TokenMasks:
        """Masks that depend on the vocabulary alone."""
        return TokenMasks(self.vocabulary)

    @cached_property
    def _source(self) -> Any:
        return self._registry.find_model(self._config.model.model, self._config)

    @cached_property
    def reasoning(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The texts that may begin reasoning, and those behind which answers begin; none: there is
        no reasoning.
        """
        registered = self.settings.reasoning_parser_of(self._config, self._registry)
        if registered is None:
            return (), ()
        loaded: ReasoningFormat = self._registry.load(registered)
        format_ = fitted(loaded, getattr(self.tokenizer, "response_template", None))
        return format_.starts, format_.ends


def backends(settings: StructuredOutputsConfig, registry: Any) -> list[str]:
    """Return the names of the backends to ask, best first; none is imported."""
    if settings.wanted != "auto":
        return [registry.choose("grammar_backends", settings.wanted).entry.name]
    return [c.registered.entry.name for c in registry.rank("grammar_backends") if not c.reason]
