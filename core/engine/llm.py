"""`LLM`: the engine inside this process, driven until everything asked for is done."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Self, TypeVar

from core.config import EngineConfig
from core.contracts import Draft, Tokenizer
from core.contracts.pooling_calls import PoolingCalls
from core.engine.front import load_from_kwargs, open_here
from core.engine.interrupts import Interrupts
from core.engine.output import OutputProcessor
from core.errors import InvalidRequest
from core.plugin import Registry
from core.progress import Progress, progress_bar
from core.text.prompts import Prompt, as_list
from core.types import PromptType, RequestOutput, RequestOutputKind, SamplingParams
from core.types.pooling import PoolingParams

Conversation = Sequence[Mapping[str, Any]]
T = TypeVar("T")
CHAT_OPTIONS = (
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tools",
    "chat_template_kwargs",
)
OWN = ("prompts", "sampling_params", "use_tqdm", "priority")
"""Keywords of `generate` itself: what a misspelt one may have meant."""
WAKE_S = 0.1
"""Longest wait for a parked request in one `step`, so that Ctrl-C is noticed."""


class LLM(PoolingCalls):
    """Offline inference; keywords and methods as in vLLM.

    Every configuration field and every plugin's option is a keyword. Not safe to call from several
    threads.
    """

    def __init__(self, model: str | None = None, **kwargs: Any) -> None:
        """Load a model: a local folder, a hub id or a plugin's name such as `scripted:`.

        Raises `ConfigError`, `PluginError` or `ModelError` with what is wrong and what to do.
        """
        if model is not None:
            kwargs["model"] = model
        self._open(*load_from_kwargs(kwargs))

    @classmethod
    def from_config(cls, config: EngineConfig, registry: Registry) -> Self:
        """Return an engine for a complete configuration and loaded plugins."""
        llm = cls.__new__(cls)
        llm._open(config, registry)
        return llm

    def _open(self, config: EngineConfig, registry: Registry) -> None:
        self._front, self.core = open_here(config, registry)
        """The engine core is for tests and tools."""
        self.config = self._front.config
        """The configuration in force, every automatic value decided."""
        self._outputs = OutputProcessor(
            self._front.renderer.tokenizer, self._front.admission.completion.finished
        )
        self._ids = itertools.count()
        self._calls = cache(partial(self._front.runner.calls, self._front, self._run))

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
        """Complete every prompt; outputs come in the order of the prompts.

        Without sampling parameters the model's own defaults hold. Further keywords are those that
        features read, each a value for all prompts or a list with one for each. Raises
        `InvalidRequest` before anything runs when one of the requests cannot be served.
        """
        ready = [self._front.renderer.prompt(prompt) for prompt in as_list(prompts)]
        return self._run(ready, sampling_params, use_tqdm, priority, **keywords)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: Progress = True,
        *,
        priority: Sequence[int] | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several; options as in `preprocess_chat`, others as in
        `generate`.
        """
        keywords = self._front.admission.sieve(options, CHAT_OPTIONS, OWN)
        return self._run(
            self._render(messages, options), sampling_params, use_tqdm, priority, **keywords
        )

    def preprocess_chat(
        self, messages: Conversation | Sequence[Conversation], **options: Any
    ) -> list[dict[str, Any]]:
        """Return the token prompts `chat` would run.

        Options: chat_template, add_generation_prompt, continue_final_message, tools,
        chat_template_kwargs.
        """
        self._front.admission.sieve(options, CHAT_OPTIONS)
        return [
            {"prompt_token_ids": p.token_ids, "prompt": p.text}
            for p in self._render(messages, options)
        ]

    def _render(
        self, messages: Conversation | Sequence[Conversation], options: dict[str, Any]
    ) -> list[Prompt]:
        options = {name: value for name, value in options.items() if name in CHAT_OPTIONS}
        options["template_kwargs"] = options.pop("chat_template_kwargs", None)
        if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
            raise InvalidRequest(
                "messages", f"must be a conversation or a list of them, not {messages!r}."
            )
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        return [
            self._front.renderer.messages(conversation, **options) for conversation in conversations
        ]  # type: ignore[arg-type]

    def _run(
        self,
        prompts: Sequence[Prompt],
        sampling_params: Any,
        use_tqdm: Progress,
        priority: Sequence[int] | None,
        /,
        **keywords: Any,
    ) -> list[RequestOutput]:
        count = len(prompts)
        params = self._params(sampling_params, count)
        ranks = [0] * count if priority is None else _one_each("priority", priority, count)
        ids = [str(next(self._ids)) for _ in prompts]
        admission = self._front.admission
        given = _given_each(admission.sieve(keywords, hints=OWN), count)
        requests = zip(ids, prompts, params, ranks, given, strict=True)
        drafts = admission.completion.of_all([admission.draft(*request) for request in requests])
        with Interrupts() as interrupts:
            try:
                for draft in drafts:
                    self._add(draft)
                done = {
                    output.request_id: output
                    for output in self._drain(len(prompts), use_tqdm, interrupts)
                }
            except BaseException:
                self.abort(ids)
                raise
        return [done[request_id] for request_id in ids]

    def _params(self, sampling_params: Any, count: int) -> list[SamplingParams]:
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        if isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params] * count
        final = RequestOutputKind.FINAL_ONLY
        listed: list[Any] = _one_each("sampling_params", sampling_params, count)
        # What is no SamplingParams is refused with everything else that is, at admission.
        return [p.clone(output_kind=final) if isinstance(p, SamplingParams) else p for p in listed]

    def _drain(
        self, count: int, use_tqdm: Progress, interrupts: Interrupts
    ) -> Iterable[RequestOutput]:
        bar = progress_bar(use_tqdm, count)
        try:
            while self.has_unfinished_requests():
                interrupts.check()
                for output in self.step():
                    if output.finished:
                        bar.update(1)
                        yield output
        finally:
            bar.close()

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
        """Queue one request for `step`; keywords as in `generate`.

        Raises `InvalidRequest` naming field and limit.
        """
        if request_id in self._outputs:
            raise InvalidRequest(
                "request_id", f"{request_id!r} is in use by a request that has not ended."
            )
        ready = prompt if isinstance(prompt, Prompt) else self._front.renderer.prompt(prompt)
        admission = self._front.admission
        draft = admission.draft(
            request_id, ready, sampling_params, priority, admission.sieve(keywords, hints=OWN)
        )
        self._add(*admission.completion.of_all([draft]))

    def _add(self, draft: Draft) -> None:
        requests = self._front.admission.admit(draft)
        self.core.add(requests)
        self._outputs.add(draft, requests)

    def step(self) -> list[RequestOutput]:
        """Run one step and return the outputs that changed, as each request's `output_kind` says."""
        self.core.await_wake(WAKE_S)
        outputs, aborts = self._outputs.process(list(self.core.step()), time.monotonic())
        if aborts:
            self.core.abort(aborts)
        return outputs

    def has_unfinished_requests(self) -> bool:
        """Say whether `step` has anything left to do."""
        return self.core.has_work or self.core.scheduler.num_parked > 0

    def abort(self, request_ids: str | Iterable[str]) -> None:
        """End requests early; unknown ids are passed over."""
        for request_id in [request_ids] if isinstance(request_ids, str) else request_ids:
            self.core.abort(self._outputs.engine_ids(request_id))
            self._outputs.drop(request_id)

    # --- around it

    def get_tokenizer(self) -> Tokenizer | None:
        """Return the model's tokenizer."""
        return self._front.renderer.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the sampling parameters the model's generation config asks for."""
        return SamplingParams.from_optional(**self._front.sampling_defaults)

    def reset_prefix_cache(self, **options: Any) -> bool:
        """Forget cached prompt beginnings; False, and nothing is done, while blocks are in use."""
        self._front.admission.sieve(options)
        return self.core.call("reset_prefix_cache") == [b"1"]

    def shutdown(self) -> None:
        """Release the model and its workers; safe to call twice."""
        self.core.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended_by: object) -> None:
        self.shutdown()


def _one_each(field: str, values: Iterable[T], count: int) -> list[T]:
    """Return the values as a list, having checked that there is one for each prompt."""
    if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise InvalidRequest(
            field, f"must be a list with one value for each prompt, not {values!r}."
        )
    listed = list(values)
    if len(listed) != count:
        raise InvalidRequest(field, f"holds {len(listed)} values, but there are {count} prompts.")
    return listed


def _given_each(keywords: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return what is given for each prompt: a list has a value for each, anything else is for all."""
    lists = {
        name: _one_each(name, v, count)
        for name, v in keywords.items()
        if isinstance(v, (list, tuple))
    }
    each = [
        {**keywords, **{name: values[i] for name, values in lists.items()}} for i in range(count)
    ]
    return [{name: value for name, value in given.items() if value is not None} for given in each]
