"""`POST /v1/completions`: text goes on from a prompt, or from many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request

from builtin_plugins.routes.beams import answering
from builtin_plugins.routes.body import CONTEXTS, client_of, read_request
from builtin_plugins.routes.conversation.fields import as_typed
from builtin_plugins.routes.conversation.running import (
    Chosen,
    answered,
    choose_model,
    engine_id,
    last,
    now,
    sound,
)
from builtin_plugins.routes.conversation.sampling import sampling_params
from builtin_plugins.routes.conversation.structured import typed_fields
from builtin_plugins.routes.many import gathered
from builtin_plugins.routes.openai.answers import (
    AnswerHead,
    AnswerOptions,
    Usage,
    answer_id,
    check_beams,
    check_stream_options,
    handed_on,
    shows_usage,
)
from builtin_plugins.routes.openai.best import best, candidates
from builtin_plugins.routes.openai.fields import (
    MAX_PROMPTS,
    MAX_SEQUENCES,
    OTHER_FIELDS,
    CompletionFields,
    read_others,
)
from builtin_plugins.routes.openai.logprobs import completion_logprobs, prompt_logprobs
from builtin_plugins.routes.short_way import ShortWay
from builtin_plugins.routes.streams import DONE, event, event_with_text, merged
from core.api import CompletionOutput, InvalidRequest, RequestOutput, SamplingParams

_OTHERS = OTHER_FIELDS - {"best_of"}  # served here, and in no other form of completions


@dataclass(frozen=True, slots=True)
class _Job:
    """One completions request, checked."""

    head: AnswerHead
    fields: CompletionFields
    sampling: SamplingParams
    """As the client asked."""
    generating: SamplingParams
    """For as many sequences as are chosen from."""
    given: Mapping[str, Any]
    """What features read of it."""
    prompts: Sequence[dict[str, Any]]
    client: str
    scores_only: bool
    """The client wants the prompt back and nothing generated (`max_tokens` 0 with `echo`)."""
    tokens_as_ids: bool
    run_ids: Sequence[str]
    """Of the engine's requests, one for each prompt."""


class Completions:
    """The endpoint."""

    def __init__(self, engine: Any, options: AnswerOptions) -> None:
        self._engine = engine
        self._options = options

    async def __call__(self, request: Request) -> Any:
        """Answer one request, streamed or whole."""
        parsed = await read_request(
            request,
            CompletionFields,
            _OTHERS | self._engine.fields.read,
            strict=self._options.strict_fields,
            num_tokens=CONTEXTS * self._engine.max_model_len,
        )
        model = await choose_model(self._engine, parsed.fields.model)
        head = AnswerHead(
            answer_id(request, parsed.fields, "cmpl"), "text_completion", now(), model.name
        )

        try:
            return await answered(
                request,
                partial(self._job, head, model, parsed.fields, parsed.others, client_of(request)),
                stream=parsed.fields.stream,
                whole=self._whole,
                events=lambda job: self._events(job, ShortWay(self._engine, request)),
                headers=parsed.headers,
            )
        except InvalidRequest as error:
            raise as_typed(
                error,
                {
                    "sampling_params": "model",
                    "extra_args": "vllm_xargs",
                    **typed_fields(parsed.others),
                },
            ) from None

    async def _job(
        self,
        head: AnswerHead,
        model: Chosen,
        fields: CompletionFields,
        others: dict[str, Any],
        client: str,
    ) -> _Job:
        given = {**read_others(others, self._engine.fields), **model.keywords}
        check_stream_options(fields)
        check_beams(fields)
        scores_only = fields.echo and others.get("max_tokens") == 0
        decided: dict[str, Any] = {"max_tokens": 1, "min_tokens": 0} if scores_only else {}
        if fields.echo and "logprobs" in others:
            decided["prompt_logprobs"] = others["logprobs"]
        elif fields.stream and "prompt_logprobs" in others:
            raise InvalidRequest("prompt_logprobs", "cannot be streamed; set `stream` to false.")
        if fields.vllm_xargs:
            decided["extra_args"] = fields.vllm_xargs
        defaults = self._engine.sampling_defaults
        sampling = sampling_params(others, defaults, stream=fields.stream, **decided)
        generating = candidates(fields, sampling)
        prompts = await self._prompts(fields, keep=sampling.truncate_prompt_tokens, client=client)
        if len(prompts) * generating.n > MAX_SEQUENCES:
            raise InvalidRequest(
                "n" if generating is sampling else "best_of",
                f"{generating.n} for {len(prompts)} prompts is more than {MAX_SEQUENCES} sequences "
                "in one request.",
            )
        as_ids = fields.return_tokens_as_token_ids
        as_ids = self._options.tokens_as_ids if as_ids is None else as_ids
        fields.prompt = ""  # it may be large, and the answer may take long
        ids = [engine_id(f"{head.id}-{i}") for i in range(len(prompts))]
        return _Job(
            head, fields, sampling, generating, given, prompts, client, scores_only, as_ids, ids
        )

    async def _prompts(self, fields: CompletionFields, **reading: Any) -> list[dict[str, Any]]:
        """Return every prompt's token ids, so that all are known to be good before one starts, and
        the text to echo.
        """
        prompts = split_prompts(fields.prompt)
        out: list[dict[str, Any]] = []
        for prompt in prompts:
            if isinstance(prompt, str):
                ids = await self._engine.tokenize(prompt, fields.add_special_tokens, **reading)
                await asyncio.sleep(0)  # a thousand texts must not hold up every other stream
                shown = {"prompt": prompt} if fields.echo else {}
                out.append({**shown, "prompt_token_ids": ids})
            else:
                out.append({"prompt_token_ids": prompt})
        return out

    def _run(self, job: _Job) -> list[Any]:
        """Return one stream of outputs per prompt; nothing starts before they are read."""
        ask = answering(
            self._engine, job.fields.length_penalty if job.fields.use_beam_search else None
        )
        return [
            ask(
                prompt,
                job.generating,
                job.run_ids[i],
                priority=job.fields.priority,
                cache_salt=job.fields.cache_salt,
                client=job.client,
                **job.given,
            )
            for i, prompt in enumerate(job.prompts)
        ]

    async def _whole(self, job: _Job) -> dict[str, Any]:
        usage = Usage(self._options.cached_details)
        outputs = await gathered(last(run) for run in self._run(job))
        choices = []
        for i, output in enumerate(outputs):
            usage.count(i, output)
            shown = best(output, job.sampling)
            choices += [
                self._choice(job, i, output, completion, first=True) for completion in shown
            ]
        if job.scores_only:
            usage.generated.clear()
        return job.head.with_choices(choices, usage=usage.as_json(), **handed_on(outputs))

    async def _events(self, job: _Job, way: ShortWay) -> AsyncGenerator[bytes]:
        events = _Events(job, self._options, self._choice)
        runs = self._run(job)
        if len(runs) == 1:
            outputs: AsyncGenerator[bytes] = way.events(job.run_ids[0], sound(runs[0]), events)
        else:
            outputs = _each(merged([sound(run) for run in runs]), events)
        async with aclosing(outputs):
            async for data in outputs:
                yield data
        yield events.last()

    def _choice(
        self,
        job: _Job,
        prompt: int,
        output: RequestOutput,
        completion: CompletionOutput,
        *,
        first: bool,
        offset: int = 0,
    ) -> dict[str, Any]:
        """Return one choice; `first` is the place where an echoed prompt belongs."""
        echo = job.fields.echo and first
        text = "" if job.scores_only else completion.text
        shown = self._prompt_text(job, prompt) if echo else ""
        choice: dict[str, Any] = {
            "index": prompt * job.sampling.n + completion.index,
            "text": shown + text,
            "logprobs": self._logprobs(job, output, completion, echo, offset),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if not job.fields.stream and job.sampling.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        if job.fields.return_token_ids:
            choice["token_ids"] = [] if job.scores_only else list(completion.token_ids)
            choice["prompt_token_ids"] = output.prompt_token_ids if first else None
        return choice

    def _logprobs(
        self,
        job: _Job,
        output: RequestOutput,
        completion: CompletionOutput,
        echo: bool,
        offset: int,
    ) -> dict[str, Any] | None:
        if completion.logprobs is None:
            return None
        ids: list[int] = [] if job.scores_only else list(completion.token_ids)
        positions: list[Any] = [] if job.scores_only else list(completion.logprobs)
        if echo and output.prompt_logprobs is not None:
            prompt = output.prompt_token_ids or []
            unknown = [None] * (len(prompt) - len(output.prompt_logprobs))
            ids = [*prompt, *ids]
            positions = [*output.prompt_logprobs, *unknown, *positions]
        tokenizer = self._engine.tokenizer
        spell = None if tokenizer is None else lambda token: str(tokenizer.decode([token]))
        return completion_logprobs(
            ids, positions, offset=offset, as_ids=job.tokens_as_ids, spell=spell
        )

    def _prompt_text(self, job: _Job, prompt: int) -> str:
        known = job.prompts[prompt]
        if "prompt" not in known and self._engine.tokenizer is not None:
            known["prompt"] = self._engine.tokenizer.decode(known["prompt_token_ids"])
        return str(known.get("prompt", ""))


class _Events:
    """Makes the events of one streamed answer."""

    def __init__(
        self, job: _Job, options: AnswerOptions, choice: Callable[..., dict[str, Any]]
    ) -> None:
        self._job = job
        self._choice = choice
        self._usage = Usage(options.cached_details)
        self._final, self._always = shows_usage(job.fields, options)
        self._plain = not (
            self._always
            or job.fields.return_token_ids
            or job.sampling.logprobs is not None
            or job.scores_only
        )
        self._newest: RequestOutput
        self._ends: dict[int, int] = {}
        """Of sequences that have begun, how much of their text has been told."""
        self._saying: dict[int, Callable[[str], bytes]] = {}
        """Of those, what makes an event of nothing but some text."""

    def of(self, output: RequestOutput, prompt: int = 0) -> bytes:
        """Return the events of an output."""
        self._usage.count(prompt, output)
        self._newest = output
        return b"".join([self._event(prompt, completion) for completion in output.outputs])

    def more(self, completion: CompletionOutput) -> bytes:
        """Return the event of what is new of a sequence of a single prompt."""
        say = self._saying.get(completion.index)
        if say is not None:
            return say(completion.text)
        self._usage.generated[0, completion.index] = completion.num_tokens
        return self._event(0, completion)

    def _event(self, prompt: int, completion: CompletionOutput) -> bytes:
        job = self._job
        index = prompt * job.sampling.n + completion.index
        if completion.finish_reason is None and (say := self._saying.get(index)) is not None:
            return say(completion.text)
        offset = self._ends.get(index, 0)
        choice = self._choice(
            job, prompt, self._newest, completion, first=index not in self._ends, offset=offset
        )
        tokens = choice["logprobs"]["tokens"] if choice["logprobs"] else ()
        self._ends[index] = offset + sum(
            map(len, tokens)
        )  # as a whole answer counts: token by token
        more = {"usage": self._usage.as_json() if self._always else None} if self._final else {}
        if self._plain:
            same = {**choice, "text": "", "finish_reason": None, "stop_reason": None}
            self._saying[index] = event_with_text(job.head.with_choices([same], **more), "text")
        return event(job.head.with_choices([choice], **more))

    def last(self) -> bytes:
        """Return what ends the stream."""
        if self._job.scores_only:
            self._usage.generated.clear()
        told = (
            event(self._job.head.with_choices([], usage=self._usage.as_json()))
            if self._final
            else b""
        )
        return told + DONE


async def _each(
    outputs: AsyncGenerator[tuple[int, RequestOutput]], events: _Events
) -> AsyncGenerator[bytes]:
    async with aclosing(outputs):
        async for prompt, output in outputs:
            yield events.of(output, prompt)


def split_prompts(prompt: str | list[Any]) -> list[str | list[int]]:
    """Return the prompts of a text, a list of texts, token ids, or a list of lists of them."""
    if isinstance(prompt, str):
        return [_not_empty(prompt)]
    if not prompt:
        raise InvalidRequest("prompt", "is empty; give a text or token ids.")
    if all(type(item) is int for item in prompt):
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequest(
            "prompt", f"holds {len(prompt)} prompts, at most {MAX_PROMPTS} are allowed."
        )
    out: list[str | list[int]] = []
    for item in prompt:
        if not isinstance(item, str) and not (
            isinstance(item, list) and all(type(i) is int for i in item)
        ):
            raise InvalidRequest(
                "prompt", "must be a text, a list of texts, token ids, or a list of lists of them."
            )
        out.append(_not_empty(item))
    return out


def _not_empty(prompt: Any) -> Any:
    if not prompt:
        raise InvalidRequest("prompt", "is empty; give a text or token ids.")
    return prompt
