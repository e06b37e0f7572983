"""Reading model text in every way it can come: for tests of tool and reasoning parsers.

Needs no pytest.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from builtin_plugins.output_parsers.api import OutputParser, ParsedDelta
from builtin_plugins.output_parsers.contract import ParseRequest, ReasoningFormat, ToolFormat

Piece = tuple[str, tuple[tuple[int, int], ...]]
"""Text, and where in it special tokens are spelled."""
NUM_CHUNKINGS: Final = 200
_TOKENS: Final = re.compile(r"\s*\w+|\s+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a client sees of an output."""

    content: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    """(name, arguments as a value) of each."""
    reasoning: str = ""
    ids: tuple[str, ...] = ()
    broken: tuple[tuple[str, str], ...] = ()
    """(name, text of the arguments) of each call that broke after its start."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A parser as a request meets it."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    request: ParseRequest = field(default_factory=ParseRequest)
    special: frozenset[str] = frozenset()
    """Special tokens of the tokenizer; empty: there is text only."""

    @property
    def stream_calls(self) -> Reader:
        """The parser as the request of a stream meets it, which receives calls while they are
        written.
        """
        return replace(self, request=replace(self.request, stream_calls=True))

    def read(self, pieces: Iterable[Piece], *, with_ids: bool = False) -> Parsed:
        """Return what comes of the pieces, one after the other."""
        parser = OutputParser(
            self.request, tools=self.tools, reasoning=self.reasoning, special=self.special
        )
        found = ParsedDelta.joined([*(parser.feed(*piece) for piece in pieces), parser.finish()])
        return Parsed(
            content=found.content,
            calls=tuple((call.name, json.loads(call.arguments)) for call in found.calls),
            reasoning=found.reasoning,
            ids=tuple(str(call.id) for call in found.calls) if with_ids else (),
            broken=tuple((call.name, call.arguments) for call in found.broken),
        )

    def check(self, text: str, seed: int = 0, count: int = NUM_CHUNKINGS) -> Parsed:
        """Return what the whole text says, having asserted that it says the same in every chunking,
        `count` random.
        """
        whole = self.read([self.piece(text)])
        for chunks in chunkings(text, self.special, seed, count):
            found = self.read(self.piece(chunk) for chunk in chunks)
            assert found == whole, (
                f"in the pieces {chunks!r}\nthe text says {found}\nand as a whole {whole}"
            )
        return whole

    def piece(self, text: str) -> Piece:
        """Return text in which every spelled special token is one."""
        if not self.special:
            return text, ()
        found = re.finditer(
            "|".join(map(re.escape, sorted(self.special, key=len, reverse=True))), text
        )
        return text, tuple(match.span() for match in found)


def chunkings(
    text: str, special: Iterable[str] = (), seed: int = 0, count: int = NUM_CHUNKINGS
) -> Iterator[list[str]]:
    """Yield a text token by token, character by character, and cut at random; special tokens are
    never cut.
    """
    whole = sorted(special, key=len, reverse=True)
    atoms = re.compile("|".join([*map(re.escape, whole), "."]), re.DOTALL).findall(text)
    parts = re.split(f"({'|'.join(map(re.escape, whole))})", text) if whole else [text]
    yield [
        token for part in parts for token in ([part] if part in whole else _TOKENS.findall(part))
    ]
    yield atoms
    rng = random.Random(seed)
    for _ in range(count):
        cuts = sorted(rng.sample(range(len(atoms) + 1), min(len(atoms), rng.randrange(1, 24))))
        yield ["".join(atoms[a:b]) for a, b in zip([0, *cuts], [*cuts, len(atoms)], strict=True)]


def hostile_texts(markers: Sequence[str], seed: int = 0, count: int = 30) -> Iterator[str]:
    """Yield texts made to break a parser: its markers anywhere, cut short, brackets and strings
    without an end.
    """
    rng = random.Random(seed)
    parts = [
        *markers,
        *(m[: len(m) // 2] for m in markers),
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        '"',
        "'",
        "\\",
        ":",
        ",",
        "=",
        "<",
    ]
    parts += [
        "\n",
        " ",
        "name",
        '{"name": "f", "arguments": {"a": 1}}',
        "f(a=1)",
        "\u00e9\u4e2d\U0001f600",
        "null",
        "1e999",
    ]
    for _ in range(count):
        yield "".join(rng.choices(parts, k=rng.randrange(1, 40)))
    for part in [*markers, "[", "{", '{"a":', "<", '"']:
        yield part * 3_000
    for marker in markers:
        yield marker + "[" * 3_000
        yield marker + '{"name": "' + "x" * 3_000
