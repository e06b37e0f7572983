"""Runs the requests of `LLM` on an engine core of this process."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from core.contracts.admission import PendingRequest
from core.engine.loop import EngineCore
from core.errors import InvalidRequest
from core.frontend.admission import Admission
from core.frontend.metrics import MetricSinks, RequestMeter
from core.frontend.outputs import OutputProcessor
from core.frontend.startup import Frontend
from core.frontend.terminal import Interrupts, Progress, progress_bar
from core.types import PromptType, RequestOutput, RequestOutputKind, SamplingParams
from core.types.prompts import Prompt, as_list

Conversation = Sequence[Mapping[str, Any]]
T = TypeVar("T")

CHAT_OPTIONS: Final = (
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tools",
    "chat_template_kwargs",
    "chat_template_content_format",
)
OWN: Final = ("prompts", "sampling_params", "use_tqdm", "priority")
"""Keywords of `LLM.generate` itself, as candidates for a misspelt one."""

WAKE_S: Final = 0.1
"""Maximum wait for a parked request in one `step`, which bounds the latency
of Ctrl-C.
"""


class OfflineLoop:
    """The requests of an `LLM` and the engine core that computes them."""

    def __init__(self, core: EngineCore, frontend: Frontend, sinks: MetricSinks) -> None:
        self._core = core
        self._admission: Admission = frontend.admission
        meter = RequestMeter(sinks) if sinks.entries else None
        if meter is not None:
            core.observe = sinks.record
        self._outputs = OutputProcessor(
            frontend.renderer.tokenizer, frontend.admission.preparer.output_fields, meter
        )

    def __len__(self) -> int:
        """Return the number of unfinished requests."""
        return len(self._outputs)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._outputs

    @property
    def has_unfinished(self) -> bool:
        """True while `step` has something to do."""
        return self._core.has_work or self._core.scheduler.num_parked > 0

    def add(self, pending: PendingRequest) -> None:
        """Queue one prepared request. Raises `InvalidRequest`."""
        requests = self._admission.admit(pending)
        self._core.add(requests)
        self._outputs.add(pending, requests)

    def step(self) -> list[RequestOutput]:
        """Run one step; return the new outputs."""
        self._core.await_wake(WAKE_S)
        outputs, aborts = self._outputs.process(list(self._core.step()), time.monotonic())
        if aborts:
            self._core.abort(aborts)
        return outputs

    def abort(self, request_ids: Iterable[str]) -> None:
        """Abort requests; unknown ids are ignored."""
        for request_id in request_ids:
            self._core.abort(self._outputs.engine_ids(request_id))
            self._outputs.drop(request_id)

    def run(self, requests: Sequence[PendingRequest], use_tqdm: Progress) -> list[RequestOutput]:
        """Prepare and run requests; return their final outputs in order.

        After an error or Ctrl-C all of them are aborted.
        """
        prepared = self._admission.preparer.prepare_all(requests)
        with Interrupts() as interrupts:
            try:
                for pending in prepared:
                    self.add(pending)
                finished = self._drain(len(requests), use_tqdm, interrupts)
                by_id = {output.request_id: output for output in finished}
            except BaseException:
                self.abort([request.request_id for request in requests])
                raise
        return [by_id[request.request_id] for request in requests]

    def _drain(
        self, count: int, use_tqdm: Progress, interrupts: Interrupts
    ) -> Iterator[RequestOutput]:
        bar = progress_bar(use_tqdm, count)
        try:
            while self.has_unfinished:
                interrupts.check()
                for output in self.step():
                    if output.finished:
                        bar.update(1)
                        yield output
        finally:
            bar.close()


class PromptRunner:
    """Reads the prompts of offline calls and runs them to their end."""

    def __init__(self, loop: OfflineLoop, frontend: Frontend) -> None:
        self._loop = loop
        self._frontend = frontend
        self._ids = itertools.count()

    def default_sampling_params(self) -> SamplingParams:
        """Return the sampling parameters of the model's generation config."""
        return SamplingParams.from_optional(**self._frontend.sampling_defaults)

    def read(self, prompts: PromptType | Sequence[PromptType]) -> list[Prompt]:
        """Return one or several prompts tokenized."""
        return [self._frontend.renderer.prompt(prompt) for prompt in as_list(prompts)]

    def render(
        self, messages: Conversation | Sequence[Conversation], options: dict[str, Any]
    ) -> list[Prompt]:
        """Return the prompts of one or several conversations."""
        options = {name: value for name, value in options.items() if name in CHAT_OPTIONS}
        options["template_kwargs"] = options.pop("chat_template_kwargs", None)
        if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
            raise InvalidRequest(
                "messages", f"must be a conversation or a list of them, not {messages!r}."
            )
        conversations: Any = messages
        if messages and isinstance(messages[0], Mapping):
            conversations = [messages]
        render = self._frontend.renderer.messages
        read = [self._frontend.admission.read_messages(each) for each in conversations]
        return [replace(render(found, **options), plugin_fields=own) for found, own in read]

    def run(
        self,
        prompts: Sequence[Prompt],
        sampling_params: Any,
        use_tqdm: Progress,
        priority: Sequence[int] | None,
        /,
        **keywords: Any,
    ) -> list[RequestOutput]:
        """Return the final outputs of prompts, in order; arguments as of `LLM.generate`."""
        count = len(prompts)
        admission = self._frontend.admission
        params = self._params(sampling_params, count)
        if priority is None:
            priorities = [0] * count
        else:
            priorities = _one_per_prompt("priority", priority, count)
        given = _keywords_per_prompt(admission.select_known(keywords, hints=OWN), count)
        ids = [str(next(self._ids)) for _ in prompts]
        arguments = zip(ids, prompts, params, priorities, given, strict=True)
        return self._loop.run([admission.pending_request(*each) for each in arguments], use_tqdm)

    def _params(self, sampling_params: Any, count: int) -> list[Any]:
        if sampling_params is None:
            sampling_params = self.default_sampling_params()
        if isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params] * count
        params: list[Any] = _one_per_prompt("sampling_params", sampling_params, count)
        for index, each in enumerate(params):
            # admission refuses other types
            if isinstance(each, SamplingParams):
                params[index] = each.clone(output_kind=RequestOutputKind.FINAL_ONLY)
        return params


def _one_per_prompt(field: str, values: Iterable[T], count: int) -> list[T]:
    """Return the values as a list of `count`. Raises `InvalidRequest` for another number."""
    if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise InvalidRequest(
            field, f"must be a list with one value for each prompt, not {values!r}."
        )
    listed = list(values)
    if len(listed) != count:
        raise InvalidRequest(field, f"holds {len(listed)} values, but there are {count} prompts.")
    return listed


def _keywords_per_prompt(keywords: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the keywords of each prompt: a list has a value for each, others
    apply to all.
    """
    lists = {
        name: _one_per_prompt(name, value, count)
        for name, value in keywords.items()
        if isinstance(value, (list, tuple))
    }
    each_prompt = []
    for index in range(count):
        own = {**keywords, **{name: values[index] for name, values in lists.items()}}
        each_prompt.append({name: value for name, value in own.items() if value is not None})
    return each_prompt
