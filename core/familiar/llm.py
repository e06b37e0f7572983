"""`LLM` with what else programs written for vLLM ask of it: beams, numbers, the model itself, calls
of features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from core.config import EngineConfig
from core.contracts.variants import methods_of
from core.engine import llm
from core.engine.front import load_sinks
from core.engine.output import OutputProcessor
from core.engine.sinks import Meter
from core.errors import InvalidRequest
from core.familiar.beams import Beams, BeamSearchOutput, BeamSearchParams
from core.familiar.metrics import Snapshot, snapshots
from core.plugin import Registry
from core.progress import progress_bar
from core.text.prompts import as_list
from core.types import PromptType

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class LLM(llm.LLM):
    __doc__ = llm.LLM.__doc__

    def __init__(self, model: str | None = None, **kwargs: Any) -> None:
        """As the engine's own; numbers are taken where `disable_log_stats` is False, as
        `get_metrics` needs.
        """
        super().__init__(model, **{"disable_log_stats": True, **kwargs})

    def _open(self, config: EngineConfig, registry: Registry) -> None:
        super()._open(config, registry)
        self._sinks = load_sinks(config, registry)
        if self._sinks.guarded:
            completion = self._front.admission.completion
            self._outputs = OutputProcessor(
                self.get_tokenizer(), completion.finished, Meter(self._sinks)
            )
            self.core.observe = self._sinks.step
            self._sinks.ready(self.config)

    def __getattr__(self, name: str) -> Any:
        """Return a method that a feature adds. Raises `AttributeError` where none that is on does."""
        front = self.__dict__.get("_front")
        method = None if front is None else methods_of(front.registry).get(name)
        if method is None:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}, and no feature that is on adds "
                "it"
            )
        return partial(method, self)

    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = False,
        concurrency_limit: int | None = None,
        **keywords: Any,
    ) -> list[BeamSearchOutput]:
        """Return the likeliest continuations of each prompt; `concurrency_limit`: of so many
        prompts at a time.

        Further keywords as in `generate`. Raises `InvalidRequest` as that does.
        """
        limits = self._front.admission.limits
        read = self._front.renderer.prompt
        most = limits.vocab_size if limits.max_logprobs == -1 else limits.max_logprobs
        if 2 * params.beam_width > most:
            raise InvalidRequest(
                "beam_width",
                f"{params.beam_width} needs the log-probabilities of {2 * params.beam_width} "
                "tokens, and --max-logprobs "
                f"allows {most}; start the engine with max_logprobs={2 * params.beam_width}.",
            )
        searches = [
            Beams(read(prompt).token_ids, params, limits.eos_token_ids, limits.max_model_len)
            for prompt in as_list(prompts)
        ]
        bar = progress_bar(use_tqdm, len(searches))
        waiting = iter(searches)
        open_: list[Beams] = []
        while open_ := [
            *open_,
            *islice(waiting, (concurrency_limit or len(searches)) - len(open_)),
        ]:
            self._extend(open_, params, keywords)
            still = [search for search in open_ if search.running]
            bar.update(len(open_) - len(still))
            open_ = still
        bar.close()
        return [BeamSearchOutput(list(self._written(search))) for search in searches]

    def _extend(
        self, searches: Sequence[Beams], params: BeamSearchParams, keywords: dict[str, Any]
    ) -> None:
        """Ask for the next token of every running beam at once."""
        asked: list[PromptType] = [beam.tokens for search in searches for beam in search.running]
        outputs = iter(self.generate(asked, params.sampling, use_tqdm=False, **keywords))
        for search in searches:
            found = []
            for output in islice(outputs, len(search.running)):
                if output.error is not None:
                    raise output.refusal or RuntimeError(output.error)
                found.append((output.outputs[0].logprobs or [{}])[0])
            search.take(found)

    def _written(self, search: Beams) -> Iterator[Any]:
        tokenizer = self.get_tokenizer()
        for beam in search.result():
            beam.text = None if tokenizer is None else tokenizer.decode(beam.tokens)
            yield beam

    def get_metrics(self) -> list[Snapshot]:
        """Return what was counted since the start, as the metric sinks expose it: see
        docs/metrics.md for the names.

        Raises `InvalidRequest` where `disable_log_stats` is left on.
        """
        if not self._sinks.guarded:
            raise InvalidRequest(
                "disable_log_stats",
                "is on, so nothing is counted; make the LLM with disable_log_stats=False.",
            )
        health = {"status": "ready", "open_requests": len(self._outputs)}
        exposing = [
            each.sink.expose for each in self._sinks.guarded if hasattr(each.sink, "expose")
        ]
        return [found for expose in exposing for found in snapshots(*expose(health))]

    def apply_model(self, function: Callable[[torch.nn.Module], T]) -> list[T]:
        """Return what a function makes of the model, which is in this process.

        Raises `InvalidRequest` where it is not.
        """
        worker = getattr(self.core.executor, "worker", None)
        if worker is None:
            raise InvalidRequest(
                "apply_model", "needs the model in this process; start the engine with one rank."
            )
        return [function(worker.model)]

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[bytes]:
        """Make a call of a feature, `<feature>.<verb>` with at most one argument in bytes; return
        what each rank answers.

        Raises `InvalidRequest` where nobody answers. Functions are not called: ranks run what
        plugins declare.
        """
        if not isinstance(method, str):
            raise InvalidRequest(
                "method",
                "must be the name of a feature's call, not a function; see docs/plugins.md.",
            )
        if (
            timeout is not None
            or kwargs
            or len(args) > 1
            or not all(isinstance(each, bytes) for each in args)
        ):
            raise InvalidRequest(
                "args", "must be one bytes object at most, without timeout and keywords."
            )
        return self.core.call(method, *args)
