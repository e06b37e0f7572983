"""Compiled constraints of one process: made in threads, shared by all who ask for the same, bounded in time and bytes."""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.structured_outputs.settings import StructuredOutputsConfig
from core.api import EngineConfig, ReasoningFormat, RequestFailed, StructuredOutputsParams, Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from core.api import Grammar, GrammarBackend, Tokenizer

NUM_THREADS: Final = 2
Key = tuple[str, Any]


def grammars_of(config: EngineConfig, registry: Any) -> Grammars:
    """Return the grammars of this process."""
    made: Grammars = registry.shared("structured_outputs", lambda: Grammars(config, registry))
    return made


class Grammars:
    """A cache of futures: the first who asks starts the compilation."""

    def __init__(self, config: EngineConfig, registry: Any) -> None:
        self.settings = StructuredOutputsConfig.of(config)
        self.num_compiled = 0
        """Compilations so far."""
        self._config = config
        self._registry = registry
        self._lock = threading.Lock()
        self._futures: OrderedDict[Key, Future[Grammar]] = OrderedDict()
        self._backends: dict[str, GrammarBackend] = {}
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._num_threads = 0

    def get(self, params: StructuredOutputsParams) -> Future[Grammar]:
        """Return the grammar of an admitted constraint, compiled or on its way."""
        key = (params.backend, params.constraint())
        with self._lock:
            future = self._futures.get(key)
            if future is None or future.cancelled():
                future = self._futures[key] = Future()
                self._start(key, future)
            self._futures.move_to_end(key)
        return future

    def _start(self, key: Key, future: Future[Grammar]) -> None:
        self._jobs.put(lambda: self._compile(key, future))
        if self._num_threads < NUM_THREADS:
            self._num_threads += 1
            # Not a pool: its threads would keep a process from ending while a compilation takes its time.
            threading.Thread(target=self._work, name="grammar-compiler", daemon=True).start()

    def _work(self) -> None:
        while True:
            self._jobs.get()()

    def _compile(self, key: Key, future: Future[Grammar]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        timer = threading.Timer(self.settings.compile_timeout_s, self._give_up, (key, future))
        timer.daemon = True
        timer.start()
        try:
            backend, constraint = key
            grammar = self._backend(backend).compile(constraint)
        except BaseException as raised:  # noqa: BLE001 - a backend may raise anything; those who wait get it
            error = raised
            self._settle(key, future, lambda: future.set_exception(error), keep=False)
        else:
            self.num_compiled += 1
            self._settle(key, future, lambda: future.set_result(grammar), keep=True)
            self._evict()
        finally:
            timer.cancel()

    def _give_up(self, key: Key, future: Future[Grammar]) -> None:
        """Let those who wait go; the thread ends when the library returns."""
        error = RequestFailed(
            f"structured_outputs.{key[1].kind}: takes longer than {self.settings.compile_timeout_s:g} s to compile "
            "(--structured-outputs-config.compile_timeout_s); make it simpler: large bounds of lengths cost most."
        )
        self._settle(key, future, lambda: future.set_exception(error), keep=False)

    def _settle(self, key: Key, future: Future[Grammar], set_: Callable[[], None], *, keep: bool) -> None:
        with self._lock:
            if future.done():
                return
            if not keep and self._futures.get(key) is future:
                del self._futures[key]
        set_()

    def _evict(self) -> None:
        """Forget the longest unused beyond the bound; outputs under way keep theirs."""
        with self._lock:
            done = [(key, f.result()) for key, f in self._futures.items() if f.done() and f.exception() is None]
            total = sum(grammar.memory_bytes for _, grammar in done)
            for key, grammar in done[:-1]:
                if total <= self.settings.cache_bytes:
                    return
                del self._futures[key]
                total -= grammar.memory_bytes

    def _backend(self, name: str) -> GrammarBackend:
        vocabulary = self.vocabulary
        with self._lock:
            if name not in self._backends:
                registered = self._registry.choose("grammar_backends", name)
                self._backends[name] = self._registry.load(registered)(vocabulary)
            return self._backends[name]

    # --- the model's tokens

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; read when first needed."""
        mode = self._config.model.tokenizer_mode
        name = self._source.tokenizer if mode == "auto" else mode
        made: Tokenizer | None = self._registry.load(self._registry.choose("tokenizers", name))(
            self._source, self._config
        )
        if made is None or self._config.model.skip_tokenizer_init:
            raise RequestFailed("structured_outputs: there is no tokenizer, so no token is known to stand for a text.")
        return made

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """What its tokens stand for."""
        ends = self._source.eos_token_ids
        if not ends and self.tokenizer.eos_token_id is not None:
            ends = (self.tokenizer.eos_token_id,)
        return read_vocabulary(self.tokenizer, ends)

    @cached_property
    def _source(self) -> Any:
        return self._registry.find_model(self._config.model.model, self._config)

    def reasoning(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the texts that may begin reasoning, and those behind which answers begin; none: there is no reasoning."""
        name = self._config.options.get("reasoning_parser") or self.settings.reasoning_parser
        if not name or self.settings.enable_in_reasoning:
            return (), ()
        format_: ReasoningFormat = self._registry.load(self._registry.choose("reasoning_parsers", name))
        return format_.starts, format_.ends
