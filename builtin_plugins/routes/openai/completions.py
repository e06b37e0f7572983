"""`POST /v1/completions`: completes one or more prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.requests import Request

from builtin_plugins.routes.common.beam_search import generate_or_search
from builtin_plugins.routes.common.body import MAX_CONTEXTS, client_name, read_request
from builtin_plugins.routes.common.concurrency import gather_bounded
from builtin_plugins.routes.common.fast_stream import FastStream
from builtin_plugins.routes.common.fields import with_client_field
from builtin_plugins.routes.common.request_ids import engine_id
from builtin_plugins.routes.common.requests import (
    ModelChoice,
    choose_model,
    final_output,
    now,
    raise_on_error,
    respond,
)
from builtin_plugins.routes.common.sampling import sampling_params, structured_output_fields
from builtin_plugins.routes.common.streams import DONE, event, merge_streams, text_event_template
from builtin_plugins.routes.openai.answers import (
    AnswerHead,
    AnswerOptions,
    Usage,
    answer_id,
    check_beam_fields,
    check_stream_options,
    extension_fields,
    usage_options,
)
from builtin_plugins.routes.openai.best_of import candidate_params, select_best
from builtin_plugins.routes.openai.fields import (
    MAX_PROMPTS,
    MAX_SEQUENCES,
    OTHER_FIELDS,
    CompletionFields,
    read_others,
)
from builtin_plugins.routes.openai.logprobs import completion_logprobs, num_chars, prompt_logprobs
from core.api import CompletionOutput, InvalidRequest, RequestOutput, SamplingParams
from core.api.serving import ServedEngine

_OTHERS = OTHER_FIELDS - {"best_of", "prompt_embeds"}  # only completions serve them


@dataclass(frozen=True, slots=True)
class _Job:
    """One checked completions request."""

    head: AnswerHead
    fields: CompletionFields
    sampling: SamplingParams
    """Parameters as the client sent them."""
    candidates: SamplingParams
    """Parameters of the generated sequences: `best_of` of them instead of `n`."""
    keywords: Mapping[str, Any]
    """Keyword arguments of `generate` that features read."""
    prompts: Sequence[dict[str, Any]]
    client: str
    scores_only: bool
    """True for `max_tokens` 0 with `echo`: the answer is the prompt and its log-probabilities."""
    tokens_as_ids: bool
    run_ids: Sequence[str]
    """Ids of the engine requests, one per prompt."""


class Completions:
    """Endpoint `/v1/completions`."""

    def __init__(self, engine: ServedEngine, options: AnswerOptions) -> None:
        self._engine = engine
        self._options = options

    async def __call__(self, request: Request) -> Any:
        """Answer one request, streamed or whole."""
        parsed = await read_request(
            request,
            CompletionFields,
            _OTHERS | self._engine.fields.read,
            strict=self._options.strict_fields,
            num_tokens=MAX_CONTEXTS * self._engine.max_model_len,
        )
        model = await choose_model(self._engine, parsed.fields.model)
        head = AnswerHead(
            answer_id(request, parsed.fields, "cmpl"), "text_completion", now(), model.name
        )

        try:
            return await respond(
                request,
                partial(self._job, head, model, parsed.fields, parsed.others, request),
                stream=parsed.fields.stream,
                whole=self._whole,
                events=lambda job: self._events(job, FastStream(self._engine, request)),
                headers=lambda job: parsed.headers,
            )
        except InvalidRequest as error:
            names = {
                "sampling_params": "model",
                "extra_args": "vllm_xargs",
                **structured_output_fields(parsed.others),
            }
            raise with_client_field(error, names) from None

    async def _job(
        self,
        head: AnswerHead,
        model: ModelChoice,
        fields: CompletionFields,
        others: dict[str, Any],
        request: Request,
    ) -> _Job:
        client = client_name(request)
        keywords = {**read_others(others, self._engine.fields, request), **model.keywords}
        check_stream_options(fields)
        check_beam_fields(fields)
        scores_only = fields.echo and others.get("max_tokens") == 0
        overrides: dict[str, Any] = {"max_tokens": 1, "min_tokens": 0} if scores_only else {}
        if fields.echo and "logprobs" in others:
            overrides["prompt_logprobs"] = others["logprobs"]
        elif fields.stream and "prompt_logprobs" in others:
            raise InvalidRequest("prompt_logprobs", "cannot be streamed; set `stream` to false.")
        if fields.vllm_xargs:
            overrides["extra_args"] = fields.vllm_xargs
        defaults = self._engine.sampling_defaults
        sampling = sampling_params(others, defaults, stream=fields.stream, **overrides)
        candidates = candidate_params(fields, sampling)
        prompts = await self._prompts(fields, sampling.truncate_prompt_tokens, client)
        if len(prompts) * candidates.n > MAX_SEQUENCES:
            raise InvalidRequest(
                "n" if candidates is sampling else "best_of",
                f"{candidates.n} for {len(prompts)} prompts is more than {MAX_SEQUENCES} sequences "
                "in one request.",
            )
        as_ids = fields.return_tokens_as_token_ids
        as_ids = self._options.tokens_as_ids if as_ids is None else as_ids
        fields.prompt = fields.prompt_embeds = None  # they may be large, and the answer take long
        return _Job(
            head=head,
            fields=fields,
            sampling=sampling,
            candidates=candidates,
            keywords=keywords,
            prompts=prompts,
            client=client,
            scores_only=scores_only,
            tokens_as_ids=as_ids,
            run_ids=[engine_id(f"{head.id}-{i}") for i in range(len(prompts))],
        )

    async def _prompts(
        self, fields: CompletionFields, keep: int | None, client: str
    ) -> list[dict[str, Any]]:
        """Return the token ids of every prompt, and its text to echo.

        All prompts are tokenized, and so validated, before the first one starts. As in vLLM,
        prompts that are cut to no token have no answers.
        """
        out = _embedded_prompts(fields)
        if fields.prompt is None and not out:
            raise InvalidRequest("prompt", "is missing; give a text or token ids.")
        prompts = [] if fields.prompt is None else split_prompts(fields.prompt)
        if keep == 0:
            return []
        for prompt in prompts:
            if isinstance(prompt, str):
                ids = await self._engine.tokenize(
                    prompt, fields.add_special_tokens, keep=keep, client=client
                )
                await asyncio.sleep(0)  # a thousand texts would delay every other stream
                text = {"prompt": prompt} if fields.echo else {}
                out.append({**text, "prompt_token_ids": ids})
            else:
                out.append({"prompt_token_ids": prompt})
        return out

    def _run(self, job: _Job) -> list[Any]:
        """Return one stream of outputs per prompt; each starts with its first read."""
        length_penalty = job.fields.length_penalty if job.fields.use_beam_search else None
        generate = generate_or_search(self._engine, length_penalty)

        def run(index: int, prompt: dict[str, Any], params: SamplingParams) -> Any:
            return generate(
                prompt,
                params,
                job.run_ids[index],
                priority=job.fields.priority,
                cache_salt=job.fields.cache_salt,
                client=job.client,
                **job.keywords,
            )

        return [
            _scored(partial(run, i), prompt, job.candidates)
            if self._fills_context(job, prompt)
            else run(i, prompt, job.candidates)
            for i, prompt in enumerate(job.prompts)
        ]

    def _fills_context(self, job: _Job, prompt: dict[str, Any]) -> bool:
        """Return whether a prompt is only scored, and leaves no room for a token."""
        if not job.scores_only or job.fields.use_beam_search:
            return False
        if len(prompt["prompt_token_ids"]) != self._engine.max_model_len:
            return False
        mode = self._engine.config.model.logprobs_mode
        return job.candidates.truncate_prompt_tokens is None and mode.startswith("raw")

    async def _whole(self, job: _Job) -> dict[str, Any]:
        usage = Usage(self._options)
        outputs = await gather_bounded(final_output(run) for run in self._run(job))
        choices = []
        for i, output in enumerate(outputs):
            usage.count(i, output)
            for completion in select_best(output, job.sampling):
                choices.append(self._choice(job, i, output, completion, first=True))
        if job.scores_only:
            usage.generated.clear()
        more = extension_fields(outputs) | usage.metrics()
        return job.head.with_choices(choices, usage=usage.as_json(), **more)

    async def _events(self, job: _Job, stream: FastStream) -> AsyncGenerator[bytes]:
        encoder = _ChunkEncoder(job, self._options, self._choice)
        runs = self._run(job)
        events: AsyncGenerator[bytes]
        if len(runs) == 1:
            events = stream.events(job.run_ids[0], raise_on_error(runs[0]), encoder)
        else:
            events = _encode_all(merge_streams([raise_on_error(run) for run in runs]), encoder)
        async with aclosing(events):
            async for data in events:
                yield data
        yield encoder.finish()

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
        """Return one choice; `first`: it starts the sequence, so it includes an echoed prompt."""
        echo = job.fields.echo and first
        text = "" if job.scores_only else completion.text
        prefix = self._prompt_text(job, prompt) if echo else ""
        choice: dict[str, Any] = {
            "index": prompt * job.sampling.n + completion.index,
            "text": prefix + text,
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
        spell = getattr(self._engine.tokenizer, "token_bytes", None)
        return completion_logprobs(
            ids, positions, offset=offset, as_ids=job.tokens_as_ids, spell=spell
        )

    def _prompt_text(self, job: _Job, prompt: int) -> str:
        known = job.prompts[prompt]
        if "prompt" not in known and self._engine.tokenizer is not None:
            known["prompt"] = self._engine.tokenizer.decode(known["prompt_token_ids"])
        return str(known.get("prompt", ""))


class _ChunkEncoder:
    """Encodes one streamed answer as chunks."""

    def __init__(
        self, job: _Job, options: AnswerOptions, choice: Callable[..., dict[str, Any]]
    ) -> None:
        self._job = job
        self._choice = choice
        self._usage = Usage(options)
        self._final, self._always = usage_options(job.fields, options)
        self._plain = not (
            self._always
            or job.fields.return_token_ids
            or job.sampling.logprobs is not None
            or job.scores_only
        )
        self._newest: RequestOutput
        self._ends: dict[int, int] = {}
        """Length of the text sent so far, by started sequence."""
        self._encode_text: dict[int, Callable[[str], bytes]] = {}
        """Encoder of a chunk of mere text, by started sequence."""

    def encode_output(self, output: RequestOutput, prompt: int = 0) -> bytes:
        """Return the chunks of an output."""
        self._usage.count(prompt, output)
        self._newest = output
        return b"".join([self._chunk(prompt, completion) for completion in output.outputs])

    def encode_delta(self, completion: CompletionOutput) -> bytes:
        """Return the chunk of new text of a sequence, for a request with a single prompt."""
        encode = self._encode_text.get(completion.index)
        if encode is not None:
            return encode(completion.text)
        self._usage.generated[0, completion.index] = completion.num_tokens
        return self._chunk(0, completion)

    def _chunk(self, prompt: int, completion: CompletionOutput) -> bytes:
        job = self._job
        index = prompt * job.sampling.n + completion.index
        encode = self._encode_text.get(index)
        if completion.finish_reason is None and encode is not None:
            return encode(completion.text)
        offset = self._ends.get(index, 0)
        choice = self._choice(
            job, prompt, self._newest, completion, first=index not in self._ends, offset=offset
        )
        tokens = choice["logprobs"]["tokens"] if choice["logprobs"] else ()
        self._ends[index] = offset + sum(
            map(num_chars, tokens)
        )  # token by token, as in a whole answer
        usage = {}
        if self._final:
            usage["usage"] = self._usage.as_json() if self._always else None
        if self._plain:
            empty = {**choice, "text": "", "finish_reason": None, "stop_reason": None}
            self._encode_text[index] = text_event_template(
                job.head.with_choices([empty], **usage), "text"
            )
        return event(job.head.with_choices([choice], **usage))

    def finish(self) -> bytes:
        """Return the end of the stream."""
        if self._job.scores_only:
            self._usage.generated.clear()
        if not self._final:
            return DONE
        usage = self._usage
        chunk = self._job.head.with_choices([], usage=usage.as_json(), **usage.metrics())
        return event(chunk) + DONE


async def _scored(
    run: Callable[[dict[str, Any], SamplingParams], AsyncGenerator[RequestOutput]],
    prompt: dict[str, Any],
    params: SamplingParams,
) -> AsyncGenerator[RequestOutput]:
    """Yield the outputs of a prompt that fills the context: its last token is the one generated."""
    ids = prompt["prompt_token_ids"]
    forced = params.clone(
        allowed_token_ids=ids[-1:],
        bad_words=[],
        ignore_eos=True,
        logit_bias=None,
        stop_token_ids=[],
        structured_outputs=None,
    )
    async with aclosing(run({**prompt, "prompt_token_ids": ids[:-1]}, forced)) as outputs:
        async for output in outputs:
            known = output.prompt_logprobs
            last = output.outputs[0].logprobs
            if known is not None and last:
                known = [*known, last[0]]
            yield replace(output, prompt_token_ids=ids, prompt_logprobs=known)


async def _encode_all(
    outputs: AsyncGenerator[tuple[int, RequestOutput]], encoder: _ChunkEncoder
) -> AsyncGenerator[bytes]:
    async with aclosing(outputs):
        async for prompt, output in outputs:
            yield encoder.encode_output(output, prompt)


def _embedded_prompts(fields: CompletionFields) -> list[dict[str, Any]]:
    """Return the prompts that are given as embeddings. Raises `InvalidRequest`."""
    given = fields.prompt_embeds
    if not given:
        return []
    for name in ("echo", "use_beam_search"):
        if getattr(fields, name):
            raise InvalidRequest(name, "got true with prompt_embeds; expected false. Remove it.")
    listed = given if isinstance(given, list) else [given]
    if len(listed) > MAX_PROMPTS:
        raise InvalidRequest(
            "prompt_embeds", f"got {len(listed)} prompts; expected at most {MAX_PROMPTS}."
        )
    return [{"prompt_embeds": each} for each in listed]


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
        is_ids = isinstance(item, list) and all(type(i) is int for i in item)
        if not isinstance(item, str) and not is_ids:
            raise InvalidRequest(
                "prompt", "must be a text, a list of texts, token ids, or a list of lists of them."
            )
        out.append(_not_empty(item))
    return out


def _not_empty(prompt: Any) -> Any:
    if not prompt:
        raise InvalidRequest("prompt", "is empty; give a text or token ids.")
    return prompt
