"""What all these endpoints do alike: read a request, pool its prompts a number at a time, count
them, name what is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.body import CONTEXTS, client_of, read_request
from builtin_plugins.routes.conversation.fields import as_typed
from builtin_plugins.routes.conversation.running import choose_model, engine_id
from builtin_plugins.routes.many import gathered
from builtin_plugins.routes.openai.answers import answer_id
from builtin_plugins.routes.pooling.fields import UNSERVED, WITHOUT_EFFECT, PoolingFields
from builtin_plugins.routes.streams import while_connected
from core.api import InvalidRequest, Names, Pooled, PoolingParams

F = TypeVar("F", bound=PoolingFields)

AT_ONCE: Final = 64
"""Prompts of one request that are under way together: enough to fill steps, and what a client that
leaves can waste.
"""
_TASKS: Final = {"embed": "embeddings", "classify": "labels", "score": "scores of pairs"}


@dataclass(frozen=True, slots=True)
class Job(Generic[F]):
    """One request, read."""

    id: str
    model: str
    fields: F
    given: Mapping[str, Any]
    """What features read of it."""
    client: str


@dataclass(frozen=True, slots=True)
class Answered:
    """What was made of one prompt."""

    pooled: Pooled
    num_tokens: int
    num_cached: int


class Pools:
    """One engine, for requests of many prompts."""

    def __init__(self, engine: Any, options: Mapping[str, Any]) -> None:
        self.engine = engine
        self.strict = bool(options.get("strict_fields"))
        self.trusts_templates = bool(options.get("trust_request_chat_template"))
        self._tells_cached = bool(options.get("enable_prompt_tokens_details"))

    @property
    def others(self) -> tuple[str, ...]:
        """Fields known besides the requests' own."""
        return (*WITHOUT_EFFECT, *UNSERVED, *self.engine.fields.read)

    async def answer(
        self,
        request: Request,
        struct: type[F],
        prefix: str,
        work: Callable[[Job[F]], Awaitable[Response]],
    ) -> Response:
        """Return the answer that `work` makes of a request."""
        parsed = await read_request(
            request,
            struct,
            self.others,
            strict=self.strict,
            num_tokens=CONTEXTS * self.engine.max_model_len,
        )
        fields: Any = parsed.fields
        model = await choose_model(self.engine, fields.model)
        names = Names(self.engine.fields.read, UNSERVED)
        given = {**names.sieve(parsed.others, WITHOUT_EFFECT), **model.keywords}
        job = Job(
            answer_id(request, fields, prefix), model.name, parsed.fields, given, client_of(request)
        )

        async def worked() -> Response:
            return await work(job)

        try:
            response = await while_connected(request, worked())
        except InvalidRequest as error:
            raise as_typed(error, {"sampling_params": "model", **parsed.fields.typed}) from None
        response.headers.update(parsed.headers)
        return response

    def served(self, *wanted: str) -> str:
        """Return the first of these tasks that the model does.

        Raises `InvalidRequest` that says what it does.
        """
        info = self.engine.pooling
        does = () if info is None else info.tasks
        found = next((task for task in wanted if task in does), None)
        if found is None:
            what = _TASKS.get(wanted[0], repr(wanted[0]))
            said = (
                f"it does {', '.join(does)}"
                if does
                else "it generates text; ask /v1/completions for that"
            )
            raise InvalidRequest("model", f"gives no {what}; {said}.")
        return found

    async def pool(
        self, job: Job[Any], prompts: Sequence[Any], params: PoolingParams, name: str | None = None
    ) -> list[Answered]:
        """Return what the model makes of each prompt: a text, a pair of texts, or token ids;
        `name`: as `prompt_name`.
        """
        return await gathered(
            (self._one(job, i, each, params, name) for i, each in enumerate(prompts)), AT_ONCE
        )

    async def _one(
        self, job: Job[Any], index: int, prompt: Any, params: PoolingParams, name: str | None
    ) -> Answered:
        outputs = self.engine.encode(
            {"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt,
            params,
            engine_id(f"{job.id}-{index}"),
            prompt_name=name,
            priority=job.fields.priority,
            cache_salt=job.fields.cache_salt,
            client=job.client,
            **job.given,
        )
        async with aclosing(outputs):
            output = await anext(outputs)
        return Answered(
            output.outputs.pooled, len(output.prompt_token_ids), output.num_cached_tokens
        )

    def usage(self, answered: Sequence[Answered]) -> dict[str, Any]:
        """Return the `usage` object."""
        count = sum(each.num_tokens for each in answered)
        usage: dict[str, Any] = {"prompt_tokens": count, "total_tokens": count}
        if self._tells_cached:
            usage["prompt_tokens_details"] = {
                "cached_tokens": sum(each.num_cached for each in answered)
            }
        return usage


def as_response(value: Any) -> Response:
    """Return JSON."""
    return Response(msgspec.json.encode(value), media_type="application/json")
