"""`LLM`: offline inference with the engine inside this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from core.config import EngineConfig
from core.contracts.admission import llm_methods
from core.contracts.runners import PoolingCalls
from core.errors import InvalidRequest
from core.frontend.callable_tokenizer import CallableTokenizer
from core.frontend.offline import CHAT_OPTIONS, OWN, Conversation, OfflineLoop, PromptRunner
from core.frontend.startup import load_from_kwargs, load_sinks, start_in_process
from core.frontend.terminal import Progress, progress_bar
from core.plugin import Registry
from core.types import PromptType, RequestOutput, SamplingParams
from core.types.beam_search import BeamSearchOutput, BeamSearchParams
from core.types.pooling import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringRequestOutput,
)
from core.types.prompts import Prompt

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class LLM:
    """Offline inference; keywords and methods as in vLLM.

    Every configuration field and every plugin option is a keyword. Not thread-safe.
    """

    def __init__(self, model: str | None = None, **kwargs: Any) -> None:
        """Load a model: a local folder, a hub id or a plugin's name like `scripted:`.

        `get_metrics` needs `disable_log_stats=False`. Raises `ConfigError`,
        `PluginError` or `ModelError`.
        """
        if model is not None:
            kwargs["model"] = model
        self._open(*load_from_kwargs({"disable_log_stats": True, **kwargs}))

    @classmethod
    def from_config(cls, config: EngineConfig, registry: Registry) -> Self:
        """Return an engine for a complete configuration and loaded plugins."""
        llm = cls.__new__(cls)
        llm._open(config, registry)
        return llm

    def _open(self, config: EngineConfig, registry: Registry) -> None:
        self._frontend, self.core = start_in_process(config, registry)
        """The engine core is for tests and tools."""
        self.config = self._frontend.config
        """The configuration in force, with every automatic value resolved."""
        self.model_config = self.config.model
        self._sinks = load_sinks(config, registry)
        self._loop = OfflineLoop(self.core, self._frontend, self._sinks)
        self._runner = PromptRunner(self._loop, self._frontend)
        calls = partial(self._frontend.runner.pooling_calls, self._frontend, self._runner.run)
        self._pooling_calls: Callable[[], PoolingCalls] = cache(calls)
        self._sinks.ready(self.config)

    def __getattr__(self, name: str) -> Any:
        """Return a method that a feature adds, or raise `AttributeError`."""
        frontend = self.__dict__.get("_frontend")
        method = None if frontend is None else llm_methods(frontend.registry).get(name)
        if method is None:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}; no active feature adds it"
            )
        return partial(method, self)

    # --- generation

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: Progress = True,
        priority: Sequence[int] | None = None,
        **keywords: Any,
    ) -> list[RequestOutput]:
        """Complete every prompt; return the outputs in the order of the prompts.

        `sampling_params` default to those of the model. Further keywords are those that
        features read: a value for all prompts, or a list with one per prompt. Raises
        `InvalidRequest` before anything runs.
        """
        ready = self._runner.read(prompts)
        return self._runner.run(ready, sampling_params, use_tqdm, priority, **keywords)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: Progress = True,
        *,
        priority: Sequence[int] | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer conversations; options as in `preprocess_chat` and `generate`."""
        keywords = self._frontend.admission.select_known(options, CHAT_OPTIONS, OWN)
        prompts = self._runner.render(messages, options)
        return self._runner.run(prompts, sampling_params, use_tqdm, priority, **keywords)

    def preprocess_chat(
        self, messages: Conversation | Sequence[Conversation], **options: Any
    ) -> list[dict[str, Any]]:
        """Return the token prompts that `chat` would run.

        Options: chat_template, add_generation_prompt, continue_final_message, tools,
        chat_template_kwargs, chat_template_content_format.
        """
        self._frontend.admission.select_known(options, CHAT_OPTIONS)
        rendered = self._runner.render(messages, options)
        return [
            {"prompt_token_ids": each.token_ids, "prompt": each.text, **each.plugin_fields}
            for each in rendered
        ]

    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = False,
        concurrency_limit: int | None = None,
        **keywords: Any,
    ) -> list[BeamSearchOutput]:
        """Return the most likely continuations of each prompt.

        `concurrency_limit` bounds the number of prompts searched at the same time.
        Further keywords and errors as in `generate`.
        """
        search = getattr(self._frontend.runner, "beam_search", None)
        if search is None:
            raise InvalidRequest("beam_search", "needs a model that generates.")
        ids = [prompt.token_ids for prompt in self._runner.read(prompts)]
        bar = progress_bar(use_tqdm, len(ids))
        beams: list[BeamSearchOutput] = search(
            self._frontend, self.generate, ids, params, bar, concurrency_limit, keywords
        )
        return beams

    # --- pooling; parameters and options belong to the runner, see docs/guides/pooling.md

    def encode(
        self, prompts: Any, *params: Any, **options: Any
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Return tensors for prompts: of `pooling_task` or the model's default task."""
        return self._pooling_calls().encode(prompts, *params, **options)

    def embed(self, prompts: Any, *params: Any, **options: Any) -> list[EmbeddingRequestOutput]:
        """Return one embedding for each prompt."""
        return self._pooling_calls().embed(prompts, *params, **options)

    def classify(
        self, prompts: Any, *params: Any, **options: Any
    ) -> list[ClassificationRequestOutput]:
        """Return the label probabilities of each prompt."""
        return self._pooling_calls().classify(prompts, *params, **options)

    def reward(
        self, prompts: Any, *params: Any, **options: Any
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Return the scores of each prompt's tokens, or of its steps if it has any."""
        return self._pooling_calls().reward(prompts, *params, **options)

    def score(self, data_1: Any, data_2: Any, **options: Any) -> list[ScoringRequestOutput]:
        """Return each pair's score: of a cross-encoder, or the embeddings' cosine."""
        return self._pooling_calls().score(data_1, data_2, **options)

    # --- one step at a time

    def add_request(
        self,
        request_id: str,
        prompt: PromptType | Prompt,
        sampling_params: SamplingParams | PoolingParams,
        *,
        priority: int = 0,
        **keywords: Any,
    ) -> None:
        """Queue one request for `step`; keywords and errors as in `generate`."""
        if request_id in self._loop:
            raise InvalidRequest("request_id", f"{request_id!r} is in use by another request.")
        ready = prompt if isinstance(prompt, Prompt) else self._frontend.renderer.prompt(prompt)
        admission = self._frontend.admission
        given = admission.select_known(keywords, hints=OWN)
        pending = admission.pending_request(request_id, ready, sampling_params, priority, given)
        for prepared in admission.preparer.prepare_all([pending]):
            self._loop.add(prepared)

    def step(self) -> list[RequestOutput]:
        """Run one step; return new outputs by each request's `output_kind`."""
        return self._loop.step()

    def has_unfinished_requests(self) -> bool:
        """Return whether `step` has something to do."""
        return self._loop.has_unfinished

    def abort(self, request_ids: str | Iterable[str]) -> None:
        """Abort requests; unknown ids are ignored."""
        self._loop.abort([request_ids] if isinstance(request_ids, str) else request_ids)

    # --- the engine

    @property
    def llm_engine(self) -> Self:
        """This object."""
        return self

    def get_tokenizer(self) -> CallableTokenizer | None:
        """Return the model's tokenizer."""
        return CallableTokenizer.of(self._frontend.renderer)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the sampling parameters of the model's generation config."""
        return self._runner.default_sampling_params()

    def get_metrics(self) -> list[Any]:
        """Return the metrics since the start: `snapshots` of the sinks.

        Raises `InvalidRequest` with `disable_log_stats` on.
        """
        if not self._sinks.entries:
            raise InvalidRequest(
                "disable_log_stats",
                "is on, so nothing is counted; make the LLM with disable_log_stats=False.",
            )
        health = {"status": "ready", "open_requests": len(self._loop)}
        sinks: list[Any] = [entry.sink for entry in self._sinks.entries]
        return [
            one for sink in sinks if hasattr(sink, "snapshots") for one in sink.snapshots(health)
        ]

    def apply_model(self, function: Callable[[torch.nn.Module], T]) -> list[T]:
        """Return the function's result for the model. New weights clear the prefix cache.

        Raises `InvalidRequest` if the model is not in this process.
        """
        worker = getattr(self.core.executor, "worker", None)
        if worker is None:
            raise InvalidRequest("apply_model", "needs the model in this process: use one rank.")
        return [_apply(function, worker.model, self.reset_prefix_cache)]

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[bytes]:
        """Call `<feature>.<verb>` with up to one bytes argument on each rank.

        Returns the answer of each rank. Raises `InvalidRequest` if no feature answers.
        Functions are refused: ranks run only code of plugins.
        """
        _check_call(method, timeout, args, kwargs)
        return self.core.call(method, *args).all

    def reset_prefix_cache(self, **options: Any) -> bool:
        """Clear the prefix cache; False, without an effect, while blocks are in use."""
        self._frontend.admission.select_known(options)
        return self.core.call("reset_prefix_cache").scheduler == b"1"

    def shutdown(self) -> None:
        """Release the model and its workers; may be called twice."""
        self.core.shutdown()
        self._frontend.admission.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended_by: object) -> None:
        self.shutdown()


def _apply(function: Callable[[Any], T], model: Any, reset: Callable[[], Any]) -> T:
    version = getattr(model, "weights_version", 0)
    try:
        return function(model)
    finally:
        if getattr(model, "weights_version", 0) != version:
            reset()


def _check_call(
    method: Any, timeout: float | None, args: Sequence[Any], kwargs: dict[str, Any] | None
) -> None:
    """Raise `InvalidRequest` unless it is a name with up to one bytes object."""
    if not isinstance(method, str):
        raise InvalidRequest(
            "method",
            "must be the name of a feature's call, not a function; see docs/extend/plugins.md.",
        )
    is_bytes = all(isinstance(each, bytes) for each in args)
    if timeout is not None or kwargs or len(args) > 1 or not is_bytes:
        raise InvalidRequest("args", "must be one bytes object, without timeout and keywords.")
