"""Steps that all pooling endpoints share: parse the request, pool its prompts, count tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.common.body import MAX_CONTEXTS, client_name, read_request
from builtin_plugins.routes.common.concurrency import gather_bounded
from builtin_plugins.routes.common.fields import with_client_field
from builtin_plugins.routes.common.media_parts import are_whole_prompts, read_media, read_part
from builtin_plugins.routes.common.request_ids import engine_id
from builtin_plugins.routes.common.requests import choose_model
from builtin_plugins.routes.common.streams import while_connected
from builtin_plugins.routes.embeddings.fields import (
    MAX_INPUTS,
    UNSERVED,
    WITHOUT_EFFECT,
    PoolingFields,
)
from builtin_plugins.routes.media import MediaSource
from builtin_plugins.routes.openai.answers import answer_id
from core.api import InvalidRequest, PoolingParams
from core.api.features import KnownNames
from core.api.outputs import Pooled
from core.api.serving import ServedEngine

F = TypeVar("F", bound=PoolingFields)
Side = str | dict[str, Any]
"""One of a pair: a text, or `content` with parts of text and `MediaSource`."""

MAX_CONCURRENT_PROMPTS: Final = 64
"""Prompts of one request that run at once: enough to fill steps, few enough to abort cheaply."""
_TASKS: Final = {"embed": "embeddings", "classify": "labels", "score": "scores of pairs"}


@dataclass(frozen=True, slots=True)
class Job(Generic[F]):
    """One parsed request."""

    id: str
    model: str
    fields: F
    keywords: Mapping[str, Any]
    """Keyword arguments of `encode` that features read."""
    client: str


@dataclass(frozen=True, slots=True)
class PooledPrompt:
    """Pooled output of one prompt."""

    pooled: Pooled
    num_tokens: int
    num_cached: int


class PoolingService:
    """Answers pooling requests with one engine."""

    def __init__(self, engine: ServedEngine, options: Mapping[str, Any]) -> None:
        self.engine = engine
        self.strict = bool(options.get("strict_fields"))
        self.trusts_request_templates = bool(options.get("trust_request_chat_template"))
        self._cached_details = bool(options.get("enable_prompt_tokens_details"))

    @property
    def others(self) -> tuple[str, ...]:
        """Known fields that the request structs lack."""
        return (*WITHOUT_EFFECT, *UNSERVED, *self.engine.fields.read)

    async def answer(
        self,
        request: Request,
        struct: type[F],
        prefix: str,
        work: Callable[[Job[F]], Awaitable[Response]],
    ) -> Response:
        """Return the response of a request, made by `work` and cancelled on a disconnect."""
        parsed = await read_request(
            request,
            struct,
            self.others,
            strict=self.strict,
            num_tokens=MAX_CONTEXTS * self.engine.max_model_len,
        )
        fields: Any = parsed.fields
        model = await choose_model(self.engine, fields.model)
        names = KnownNames(self.engine.fields.read, UNSERVED)
        keywords = {**names.select_known(parsed.others, WITHOUT_EFFECT), **model.keywords}
        job = Job(
            answer_id(request, fields, prefix),
            model.name,
            parsed.fields,
            keywords,
            client_name(request),
        )

        async def worked() -> Response:
            return await work(job)

        try:
            response = await while_connected(request, worked())
        except InvalidRequest as error:
            raise with_client_field(
                error, {"sampling_params": "model", **parsed.fields.typed}
            ) from None
        response.headers.update(parsed.headers)
        return response

    def supported_task(self, *tasks: str) -> str:
        """Return the first of the tasks that the model supports.

        Raises `InvalidRequest` with the supported tasks.
        """
        info = self.engine.pooling
        supported = () if info is None else info.tasks
        found = next((task for task in tasks if task in supported), None)
        if found is None:
            what = _TASKS.get(tasks[0], repr(tasks[0]))
            hint = "it generates text; use /v1/completions"
            if supported:
                hint = f"it does {', '.join(supported)}"
            raise InvalidRequest("model", f"gives no {what}; {hint}.")
        return found

    async def pool(
        self, job: Job[Any], prompts: Sequence[Any], params: PoolingParams, name: str | None = None
    ) -> list[PooledPrompt]:
        """Return the pooled output of each prompt: a text, a pair of sides, or token ids.

        `name` is the prompt name of `encode`.
        """
        return await gather_bounded(
            (self._one(job, i, each, params, name) for i, each in enumerate(prompts)),
            MAX_CONCURRENT_PROMPTS,
        )

    async def _one(
        self, job: Job[Any], index: int, prompt: Any, params: PoolingParams, name: str | None
    ) -> PooledPrompt:
        outputs: Any = self.engine.encode(
            {"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt,
            params,
            engine_id(f"{job.id}-{index}"),
            prompt_name=name,
            priority=job.fields.priority,
            cache_salt=job.fields.cache_salt,
            client=job.client,
            **job.keywords,
        )
        async with aclosing(outputs):
            output = await anext(outputs)
        return PooledPrompt(
            output.outputs.pooled, len(output.prompt_token_ids), output.num_cached_tokens
        )

    def check_images(self, sides: Sequence[Side]) -> None:
        """Raise `InvalidRequest` for images that the model does not take."""
        for side in sides:
            if not isinstance(side, str):
                read_media(self.engine, [side])

    def alone(self, sides: Sequence[Side]) -> list[Any]:
        """Return a prompt for each side: a text, or an image. Raises `InvalidRequest`."""
        self.check_images(sides)
        return [side if isinstance(side, str) else self._image_prompt(side) for side in sides]

    def _image_prompt(self, side: Mapping[str, Any]) -> dict[str, Any]:
        """Return the prompt of a side with an image, for a model without a template for it."""
        media = read_media(self.engine, [side])
        if not are_whole_prompts(self.engine, media):
            raise InvalidRequest(
                media.sources[0].field,
                "got an image; expected a text, since this model embeds images in a conversation. "
                "Send it as `messages` to /v1/embeddings.",
            )
        texts = [part["text"] for part in side["content"] if isinstance(part, Mapping)]
        data: dict[str, list[Any]] = {}
        for source in media.sources:
            data.setdefault(source.modality, []).append(source)
        return {"prompt": "".join(texts), "multi_modal_data": data}

    def usage(self, pooled_prompts: Sequence[PooledPrompt]) -> dict[str, Any]:
        """Return the `usage` object."""
        count = sum(each.num_tokens for each in pooled_prompts)
        usage: dict[str, Any] = {"prompt_tokens": count, "total_tokens": count}
        if self._cached_details:
            usage["prompt_tokens_details"] = {
                "cached_tokens": sum(each.num_cached for each in pooled_prompts)
            }
        return usage


def as_response(value: Any) -> Response:
    """Return a JSON response."""
    return Response(msgspec.json.encode(value), media_type="application/json")


def read_inputs(inputs: str | list[Any]) -> list[str | list[int]]:
    """Return the prompts of a text, a list of texts, token ids, or a list of lists of them."""
    if isinstance(inputs, str) or (inputs and all(type(item) is int for item in inputs)):
        inputs = [inputs]
    check_count("input", inputs)
    for i, item in enumerate(inputs):
        if not isinstance(item, str) and not (
            isinstance(item, list) and all(type(token) is int for token in item)
        ):
            raise InvalidRequest(
                "input", "must be a text, a list of texts, token ids, or a list of lists of them."
            )
        if not item:
            raise InvalidRequest(f"input[{i}]", "is empty; give a text or token ids.")
    return inputs


def read_sides(name: str, inputs: Any) -> list[Side]:
    """Return the sides of a text, an object that has one, or a list of these."""
    if not isinstance(inputs, list):
        return [read_side(name, inputs)]
    check_count(name, inputs)
    return [read_side(f"{name}[{i}]", item) for i, item in enumerate(inputs)]


def read_side(name: str, inputs: Any) -> Side:
    """Return a text: the string itself, an object's `text`, or the text parts of its `content`.

    With images, the parts stay apart.
    """
    if isinstance(inputs, str):
        return inputs
    found = inputs.get("text", inputs.get("content")) if isinstance(inputs, dict) else None
    if isinstance(found, list):
        parts = [read_part(part, f"{name}.content[{i}]") for i, part in enumerate(found)]
        images = [part for part in parts if isinstance(part, MediaSource)]
        texts = [part for part in parts if not isinstance(part, MediaSource)]
        if any(isinstance(part, dict) and part.get("type", "text") != "text" for part in texts):
            raise InvalidRequest(name, "has contents besides texts and images. Remove them.")
        words: list[Any] = [part.get("text") if isinstance(part, dict) else None for part in texts]
        found = "".join(words) if all(isinstance(word, str) for word in words) else None
        if images and found is not None:
            return {"content": parts}
    if not isinstance(found, str):
        raise InvalidRequest(
            name,
            "must be a text, or an object with `text` or with parts of text and images as "
            "`content`.",
        )
    return found


def check_count(name: str, inputs: Sequence[Any]) -> None:
    """Raise `InvalidRequest` for an empty list, and for more than `MAX_INPUTS` texts."""
    if not inputs:
        raise InvalidRequest(name, "is empty; give at least one text.")
    if len(inputs) > MAX_INPUTS:
        raise InvalidRequest(
            name, f"holds {len(inputs)} texts, at most {MAX_INPUTS} are allowed in one request."
        )
