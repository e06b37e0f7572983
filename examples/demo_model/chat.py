"""Items as token ids, rendered by the very template the model is shipped with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from examples.demo_model.items import Item
from examples.demo_model.layout import IGNORED, Row

TEMPLATE: Final = Path(__file__).with_name("chat_template.jinja")
END: Final = "<|im_end|>"
START: Final = "<|im_start|>"


class Chat:
    """Turns items into prompts, right answers and training sequences."""

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template: jinja2.Template = environment.from_string(
            TEMPLATE.read_text(encoding="utf-8").rstrip("\n")
        )
        self._tokenizer = tokenizer
        if tokenizer is not None:
            self._end = token_id(tokenizer, END)
            self._opening = [token_id(tokenizer, START), *self._ids("assistant\n")]

    def prompt(self, item: Item) -> str:
        """Return the text the model is given."""
        return self.render(item.messages, item.tools, True, item.thinking)

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        generate: bool,
        thinking: bool = True,
    ) -> str:
        """Return a conversation as text."""
        extra = {} if thinking else {"enable_thinking": False}
        return self._template.render(
            messages=messages, tools=tools or None, add_generation_prompt=generate, **extra
        )

    def encode(self, item: Item) -> tuple[list[int], list[bool]]:
        """Return the ids of a whole conversation, and for each whether the model is to learn to say
        it.
        """
        prompt = self._ids(self.prompt(item))
        answer = [*self._ids(completion(item)), self._end]
        learnt = self._answer_marks(prompt) if item.train_history else [False] * len(prompt)
        return prompt + answer, learnt + [True] * len(answer)

    def row(self, items: Sequence[Item]) -> Row:
        """Return conversations for training; what they begin with alike, up to anything learnt,
        stands there once.
        """
        encoded = [self.encode(item) for item in items]
        shared = _alike(encoded)
        row = Row([], [], [], [])
        for branch, (tokens, learnt) in enumerate(encoded):
            begin = shared if branch else 0
            row.ids.extend(tokens[begin:-1])
            row.targets.extend(
                token if is_answer else IGNORED
                for token, is_answer in zip(tokens[begin + 1 :], learnt[begin + 1 :], strict=True)
            )
            row.positions.extend(range(begin, len(tokens) - 1))
            row.branches.extend([0] * (shared - begin) + [branch + 1] * (len(tokens) - 1 - shared))
        return row

    def _answer_marks(self, ids: list[int]) -> list[bool]:
        """Mark the earlier answers in a prompt, their end tokens included."""
        marks = [False] * len(ids)
        inside = False
        size = len(self._opening)
        for i in range(size, len(ids)):
            inside = inside or ids[i - size : i] == self._opening
            marks[i] = inside and self._end in ids[i:]
            inside = inside and ids[i] != self._end
        return marks

    def _ids(self, text: str) -> list[int]:
        assert self._tokenizer is not None
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def _alike(encoded: Sequence[tuple[list[int], list[bool]]]) -> int:
    """Return the length of the common prefix, with no learnt token in it or next."""
    if len(encoded) == 1:
        return 0
    texts, marks = ([pair[part] for pair in encoded] for part in (0, 1))
    count = 0
    for tokens, learnt in zip(zip(*texts, strict=False), zip(*marks, strict=False), strict=True):
        if any(learnt):
            return count - 1  # the token before it says it
        if len(set(tokens)) > 1:
            break
        count += 1
    return count


def token_id(tokenizer: Tokenizer, text: str) -> int:
    """Return the id of a text that is one token."""
    found = tokenizer.token_to_id(text)
    if found is None:
        raise ValueError(
            f"the tokenizer has no token {text!r}; it must be made by `train_tokenizer`."
        )
    return found


def completion(item: Item) -> str:
    """Return the text the model is to answer with, without the end token."""
    thought = f"<think>\n{item.reasoning}\n</think>\n\n" if item.reasoning else ""
    calls = [
        f'<tool_call>\n{{"name": {json.dumps(call["name"])}, '
        f'"arguments": {json.dumps(call["arguments"], ensure_ascii=False)}}}\n</tool_call>'
        for call in item.calls
    ]
    return thought + "\n".join([item.answer, *calls] if item.answer else calls)
