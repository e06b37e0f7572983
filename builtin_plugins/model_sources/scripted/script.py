"""The scripted model's options and replies: finds the last user message of a prompt.

Works on tokens and texts, without tensors. A reply is a function of the prompt, so preemption,
chunking and cached prefixes change nothing. Only answers without a `prompt` in the answers file
depend on earlier prompts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from builtin_plugins.model_sources.scripted.tokenizer import (
    END_OF_TEXT,
    END_OF_TURN,
    ESCAPE,
    START_OF_TURN,
    ScriptedTokenizer,
)
from core.api import ConfigError, EngineConfig
from core.api.config import read_option_text
from core.api.models import ModelSource

_MAX_REMEMBERED = 100_000
"""Maximum remembered prompts with an answer from the file; the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One line of an answers file."""

    text: str
    prompt: str | None = None
    """The message it answers; None: the next new prompt."""
    fail_at_token: int | None = None
    """Index, from 1, of the token at which the request fails."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The tokens of one reply, without the end token."""

    token_ids: tuple[int, ...]
    fail_at_token: int | None


class Script:
    """Chooses the reply to a prompt."""

    def __init__(
        self,
        tokenizer: ScriptedTokenizer,
        answers: Sequence[Answer] = (),
        fail_at_token: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._fail_at_token = fail_at_token
        self._by_prompt = {answer.prompt: answer for answer in answers if answer.prompt is not None}
        self._in_turn = [answer for answer in answers if answer.prompt is None]
        self._given: dict[bytes, Answer] = {}
        self._num_given = 0

    def reply(self, prompt: Sequence[int]) -> Reply:
        """Return the reply to a prompt of token ids."""
        message = self._last_message(list(prompt))
        answer = self._by_prompt.get(message.decode("utf-8", "replace"))
        if answer is None and self._in_turn:
            answer = self._next_answer(repr(list(prompt)).encode())
        text = message if answer is None else answer.text.encode()
        fail_at = None if answer is None else answer.fail_at_token
        return Reply(tuple(self._tokenizer.encode_visible(text)), fail_at or self._fail_at_token)

    def _last_message(self, prompt: list[int]) -> bytes:
        """Return the last user message, else the last message, else the whole prompt."""
        turns = [i for i, token in enumerate(prompt) if token == START_OF_TURN]
        for start in reversed(turns):
            role, newline, text = self._turn(prompt, start).partition(b"\n")
            if newline and role == b"user":
                return _unescape(text)
        ended = [start for start in turns if END_OF_TURN in prompt[start:]]
        if not ended:
            return self._tokenizer.to_bytes(prompt)
        role, newline, text = self._turn(prompt, ended[-1]).partition(b"\n")
        return _unescape(text if newline else role)

    def _turn(self, prompt: list[int], start: int) -> bytes:
        """Return the role and text of the turn that starts at an index."""
        end = next((i for i in range(start, len(prompt)) if prompt[i] == END_OF_TURN), len(prompt))
        return self._tokenizer.to_bytes(prompt[start + 1 : end])

    def _next_answer(self, prompt: bytes) -> Answer:
        key = hashlib.sha256(prompt).digest()
        answer = self._given.get(key)
        if answer is None:
            answer = self._given[key] = self._in_turn[self._num_given % len(self._in_turn)]
            self._num_given += 1
            if len(self._given) > _MAX_REMEMBERED:
                del self._given[next(iter(self._given))]
        return answer


def read_answers(path: str) -> tuple[Answer, ...]:
    """Read an answers file. Raises `ConfigError` naming file and line."""
    lines = read_option_text("--scripted-answers", path).splitlines()
    answers = tuple(
        _read_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip()
    )
    if not answers:
        raise ConfigError(f"--scripted-answers {path}: got no answer; expected one per line.")
    return answers


def _read_line(path: str, number: int, line: str) -> Answer:
    if line.lstrip()[0] not in '{"':
        return Answer(line)
    where = f"--scripted-answers {path}, line {number}"
    try:
        value: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{where}: is not JSON: {error}.") from error
    if isinstance(value, str):
        return Answer(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("answer"), str):
        raise ConfigError(f'{where}: expected an "answer" text.')
    fail_at = value.get("fail_at_token")
    if fail_at is not None and (not isinstance(fail_at, int) or fail_at < 1):
        raise ConfigError(f"{where}: fail_at_token: got {fail_at!r}; expected an integer >= 1.")
    prompt = value.get("prompt")
    return Answer(value["answer"], prompt if isinstance(prompt, str) else None, fail_at)


def _unescape(text: bytes) -> bytes:
    """Remove the escapes that the chat template adds to special tokens in a message."""
    if ESCAPE not in text:
        return text
    plain = bytearray()
    escaped = False
    for byte in text:
        if byte == ESCAPE[0] and not escaped:
            escaped = True
            continue
        plain.append(byte)
        escaped = False
    return bytes(plain)


@dataclass(frozen=True, slots=True)
class ScriptedConfig:
    """Replaces a checkpoint's config.json: everything the model and its tokenizer need."""

    model_type: str = "scripted"
    tokens_per_second: float | None = None
    fail_at_token: int | None = None
    answers: tuple[Answer, ...] = ()
    special_tokens: tuple[str, ...] = ()
    """Texts that are one special token each, which outputs omit."""
    markers: tuple[str, ...] = ()
    """Texts that are one token each and stay in the output, such as parser markers."""


def scripted_source(name: str, config: EngineConfig) -> ModelSource:
    """Return the source for a name that starts with `scripted:`.

    Raises `ConfigError` naming a bad option.
    """
    options = config.options
    script = ScriptedConfig(
        tokens_per_second=_positive(options, "scripted_tokens_per_second"),
        fail_at_token=_positive(options, "scripted_fail_at_token"),
        answers=read_answers(options["scripted_answers"])
        if options.get("scripted_answers")
        else (),
        special_tokens=_listed(options.get("scripted_special_tokens") or ()),
        markers=_listed(options.get("scripted_tokens") or ()),
    )
    return ModelSource(
        name=name,
        architecture="ScriptedModel",
        hf_config=script,
        identity="scripted",
        max_model_len=_positive(options, "scripted_max_model_len") or 32768,
        eos_token_ids=(END_OF_TURN, END_OF_TEXT),
        tokenizer="scripted",
        weight_loader="scripted",
        origin="scripted",
    )


def _positive(options: Mapping[str, Any], name: str) -> Any:
    value = options.get(name)
    if value is not None and value <= 0:
        raise ConfigError(f"--{name.replace('_', '-')}: got {value}; expected a number > 0.")
    return value


def _listed(tokens: Any) -> tuple[str, ...]:
    texts = [tokens] if isinstance(tokens, str) else list(tokens)
    return tuple(part for text in texts for part in text.split(",") if part)
