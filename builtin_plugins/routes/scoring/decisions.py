"""`POST /v1/decisions`: probabilities of the answers to questions about a text.

The model reads the text and one question with its options lettered; the letters' probabilities as
its reply are the answer. Nothing is generated.
"""

from __future__ import annotations

import json
import math
import secrets
import string
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.common.body import client_name, read_request, release_body
from builtin_plugins.routes.common.conversation import thinking_kwargs
from builtin_plugins.routes.common.fields import ShortString
from builtin_plugins.routes.common.requests import choose_model
from builtin_plugins.routes.common.streams import while_connected
from builtin_plugins.routes.scoring.labels import LabelReads, read_labels, softmax
from core.api import InvalidRequest
from core.api.serving import ServedEngine

LETTERS: Final = string.ascii_uppercase
REPLY: Final = "Answer with the letter of one option only."


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    """A text of a message."""

    text: str


class InputMessage(msgspec.Struct, kw_only=True):
    """A message of the user."""

    role: Literal["user"]
    content: str | list[InputText]
    type: Literal["message"] = "message"

    @property
    def text(self) -> str:
        """The message's text."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)


class Choice(msgspec.Struct, kw_only=True):
    """An option of a choice."""

    value: str | bool
    description: str = ""


class Level(msgspec.Struct, kw_only=True):
    """A level of a scale."""

    label: str
    description: str = ""


class Predicate(msgspec.Struct, tag_field="type", tag="predicate", kw_only=True):
    """Whether something is true."""

    instructions: str
    name: str | None = None

    @property
    def options(self) -> list[tuple[str, str]]:
        """Names and descriptions of the options."""
        return [("false", ""), ("true", "")]

    def answer(self, shares: Sequence[float], mass: float) -> dict[str, Any]:
        """Return the answer for the options' probabilities."""
        return {"type": "predicate", "name": self.name, "probability": shares[1]}


class ChoiceQuestion(msgspec.Struct, tag_field="type", tag="choice", kw_only=True):
    """Which of several values applies."""

    instructions: str
    choices: Annotated[list[Choice], msgspec.Meta(min_length=2, max_length=len(LETTERS))]
    name: str | None = None

    @property
    def options(self) -> list[tuple[str, str]]:
        """Names and descriptions of the options."""
        return [
            (json.dumps(each.value, ensure_ascii=False), each.description) for each in self.choices
        ]

    def answer(self, shares: Sequence[float], mass: float) -> dict[str, Any]:
        """Return the answer for the options' probabilities; `mass` is that of all letters."""
        best = max(range(len(shares)), key=shares.__getitem__)
        return {
            "type": "choice",
            "name": self.name,
            "choice": self.choices[best].value,
            "probabilities": [
                {"value": each.value, "probability": share}
                for each, share in zip(self.choices, shares, strict=True)
            ],
            "confidence": shares[best] * mass,
        }


class Score(msgspec.Struct, tag_field="type", tag="score", kw_only=True):
    """Which level of a scale applies."""

    instructions: str
    levels: Annotated[list[Level], msgspec.Meta(min_length=2, max_length=10)]
    name: str | None = None

    @property
    def options(self) -> list[tuple[str, str]]:
        """Names and descriptions of the options."""
        return [(each.label, each.description) for each in self.levels]

    def answer(self, shares: Sequence[float], mass: float) -> dict[str, Any]:
        """Return the answer for the options' probabilities; `mass` is that of all letters."""
        return {
            "type": "score",
            "name": self.name,
            "score": sum(index * share for index, share in enumerate(shares)),
            "probabilities": [
                {"value": index, "label": level.label, "probability": share}
                for index, (level, share) in enumerate(zip(self.levels, shares, strict=True))
            ],
            "confidence": max(shares) * mass,
        }


Question = Predicate | ChoiceQuestion | Score


class DecisionFields(msgspec.Struct, kw_only=True):
    """Body of `/v1/decisions`."""

    model: str
    input: str | list[InputMessage]
    questions: Annotated[list[Question], msgspec.Meta(min_length=1, max_length=200)]
    cache_salt: ShortString = ""
    safety_identifier: ShortString | None = None


class Decisions:
    """Endpoint `/v1/decisions`."""

    def __init__(self, engine: ServedEngine, *, strict: bool) -> None:
        self._engine = engine
        self._strict = strict

    async def create(self, request: Request) -> Response:
        """An answer per question, with probabilities."""
        parsed = await read_request(request, DecisionFields, strict=self._strict)
        fields = parsed.fields
        model = await choose_model(self._engine, fields.model)
        _check(fields)
        client = client_name(request)
        options = {"cache_salt": fields.cache_salt, "client": client, **model.keywords}
        reads = await while_connected(request, self._read(fields, client, options))
        release_body(request)
        answers = [
            question.answer(softmax(logprobs), min(1.0, sum(map(math.exp, logprobs))))
            for question, logprobs in zip(fields.questions, reads.logprobs, strict=True)
        ]
        answer = {"model": model.name, "answers": answers, "usage": _usage(reads)}
        return Response(
            msgspec.json.encode(answer), media_type="application/json", headers=parsed.headers
        )

    async def _read(
        self, fields: DecisionFields, client: str, options: dict[str, Any]
    ) -> LabelReads:
        text = _text(fields.input)
        prompts: list[list[int]] = []
        labels: list[list[list[int]]] = []
        for question in fields.questions:
            messages = [{"role": "user", "content": f"{text}\n\n{_question_text(question)}"}]
            _, ids = await self._engine.render_chat(
                messages,
                client=client,
                add_generation_prompt=True,
                template_kwargs=thinking_kwargs(False),
            )
            prompts.append(ids)
            letters = LETTERS[: len(question.options)]
            labels.append([await self._engine.tokenize(letter, False) for letter in letters])
        answer_id = f"decision-{secrets.token_hex(16)}"
        return await read_labels(self._engine, prompts, labels, answer_id, options)


def _text(given: str | list[InputMessage]) -> str:
    return given if isinstance(given, str) else "\n\n".join(message.text for message in given)


def _question_text(question: Question) -> str:
    """Return the question as the model reads it."""
    lines = [f"Question: {question.instructions}"]
    for letter, (name, description) in zip(LETTERS, question.options, strict=False):
        lines.append(f"{letter}: {name} - {description}" if description else f"{letter}: {name}")
    return "\n".join([*lines, REPLY])


def _check(fields: DecisionFields) -> None:
    """Raise `InvalidRequest` for a choice with equal values."""
    for i, question in enumerate(fields.questions):
        names = [name for name, _ in question.options]
        if isinstance(question, ChoiceQuestion) and len(set(names)) < len(names):
            raise InvalidRequest(f"questions[{i}].choices", "has two equal values.")


def _usage(reads: LabelReads) -> dict[str, Any]:
    return {
        "input_tokens": reads.num_prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": min(reads.num_cached_tokens, reads.num_prompt_tokens),
            "cache_write_tokens": 0,
        },
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reads.num_prompt_tokens,
    }
