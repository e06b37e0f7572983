"""What grammars are made with: the model's vocabulary, its reasoning markers, the backends."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from builtin_plugins.features.structured_outputs.grammar_row import TokenMasks
from builtin_plugins.features.structured_outputs.reasoning_tracker import TokenTexts
from builtin_plugins.features.structured_outputs.settings import StructuredOutputsConfig
from builtin_plugins.grammar_backends.api import Vocabulary, read_vocabulary
from builtin_plugins.output_parsers.api import ReasoningFormat, fit_format
from core.api import EngineConfig, Registry, RequestFailed

if TYPE_CHECKING:
    from builtin_plugins.grammar_backends.api import GrammarBackend
    from core.api.serving import Tokenizer


class GrammarResources:
    """Shared by all grammar processes; each part is read on first use."""

    def __init__(self, config: EngineConfig, registry: Registry) -> None:
        self.settings = StructuredOutputsConfig.of(config)
        self._config = config
        self._registry = registry
        self._backends: dict[str, GrammarBackend] = {}

    def warm_up(self) -> None:
        """Read everything that requests usually need."""
        for name in backend_names(self.settings, self._registry)[:1]:
            self.backend(name)
        self.reasoning, self.masks, self.texts  # noqa: B018 - reading them creates them

    def backend(self, name: str) -> GrammarBackend:
        """Return a backend for the model's vocabulary."""
        if name not in self._backends:
            self._backends[name] = self.backend_class(name)(self.vocabulary)
        return self._backends[name]

    def backend_class(self, name: str) -> type[GrammarBackend]:
        """Return a backend's class, which checks constraints without a vocabulary."""
        registered = self._registry.choose("grammar_backends", name)
        found: type[GrammarBackend] = self._registry.load(registered)
        return found

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        mode = self._config.model.tokenizer_mode
        name = self._source.tokenizer if mode == "auto" else mode
        make = self._registry.load(self._registry.choose("tokenizers", name))
        made: Tokenizer | None = make(self._source, self._config)
        if made is None or self._config.model.skip_tokenizer_init:
            raise RequestFailed(
                "structured_outputs: there is no tokenizer, so the text of tokens is unknown."
            )
        return made

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The bytes of each token."""
        ends = self._source.eos_token_ids
        if not ends and self.tokenizer.eos_token_id is not None:
            ends = (self.tokenizer.eos_token_id,)
        return read_vocabulary(self.tokenizer, ends)

    @cached_property
    def masks(self) -> TokenMasks:
        """Masks that depend on the vocabulary only."""
        return TokenMasks(self.vocabulary)

    @cached_property
    def _source(self) -> Any:
        return self._registry.find_model(self._config.model.model, self._config)

    @cached_property
    def texts(self) -> TokenTexts:
        """The text of each token, special tokens included."""
        return TokenTexts(self.tokenizer, self.vocabulary)

    @cached_property
    def reasoning(self) -> ReasoningFormat | None:
        """The format of reasoning; None: the whole output is constrained."""
        registered = self.settings.reasoning_parser_of(self._config, self._registry)
        if registered is None:
            return None
        loaded: ReasoningFormat = self._registry.load(registered)
        return fit_format(loaded, getattr(self.tokenizer, "response_template", None))


def backend_names(settings: StructuredOutputsConfig, registry: Registry) -> list[str]:
    """Return the names of the backends to try, best first, without importing them."""
    if settings.backend_entry != "auto":
        return [registry.choose("grammar_backends", settings.backend_entry).entry.name]
    ranked = registry.rank("grammar_backends")
    return [candidate.registered.entry.name for candidate in ranked if not candidate.reason]
