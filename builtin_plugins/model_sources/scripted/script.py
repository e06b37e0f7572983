"""What the scripted model says: finds the last user message in a prompt and the answer to it.

Knows tokens and texts, no tensors. An answer is a function of the prompt, so that preemption,
chunking and cached prefixes change nothing; only the file's answers without a `prompt` depend on
which prompts came before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from builtin_plugins.model_sources.scripted.tokenizer import (
    END_OF_TURN,
    ESCAPE,
    START_OF_TURN,
    ScriptedTokenizer,
)
from core.api import ConfigError

_MAX_REMEMBERED = 100_000
"""Prompts whose file answer is remembered; the oldest are forgotten, so memory stays bounded."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One line of an answers file."""

    text: str
    prompt: str | None = None
    """The message it answers; None: the next prompt not seen before."""
    fail_at_token: int | None = None
    """The request fails when this token is due, counted from 1."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Tokens that answer one prompt, the end token not included."""

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
        """Return what to say to a prompt of token ids."""
        asked = self._asked(list(prompt))
        answer = self._by_prompt.get(asked.decode("utf-8", "replace"))
        if answer is None and self._in_turn:
            answer = self._next_answer(repr(list(prompt)).encode())
        text = asked if answer is None else answer.text.encode()
        fail_at = None if answer is None else answer.fail_at_token
        return Reply(tuple(self._tokenizer.encode_visible(text)), fail_at or self._fail_at_token)

    def _asked(self, prompt: list[int]) -> bytes:
        """Return the last user message; the last message without one; the whole prompt outside a
        chat.
        """
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
        """Return the role and text of the turn that begins there."""
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
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--scripted-answers {path} cannot be read: {error}.") from error
    answers = tuple(
        _read_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip()
    )
    if not answers:
        raise ConfigError(f"--scripted-answers {path} holds no answer; write one a line.")
    return answers


def _read_line(path: str, number: int, line: str) -> Answer:
    if line.lstrip()[0] not in '{"':
        return Answer(line)
    where = f"--scripted-answers {path}, line {number}"
    try:
        value: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}.") from error
    if isinstance(value, str):
        return Answer(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("answer"), str):
        raise ConfigError(f'{where} has no "answer" text.')
    fail_at = value.get("fail_at_token")
    if fail_at is not None and (not isinstance(fail_at, int) or fail_at < 1):
        raise ConfigError(f"{where}: fail_at_token must be an integer from 1, not {fail_at!r}.")
    prompt = value.get("prompt")
    return Answer(value["answer"], prompt if isinstance(prompt, str) else None, fail_at)


def _unescape(text: bytes) -> bytes:
    """Undo what the chat template does to special tokens written inside a message."""
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
