"""`engine parse`: what a client would see of a model's text, whole and as it comes."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from core.api import (
    ArgumentsPiece,
    CallBegun,
    ConfigError,
    Entry,
    OutputParser,
    ParsedDelta,
    ParseRequest,
    did_you_mean,
    fitted,
    hookimpl,
    known_formats,
    suggest,
)

if TYPE_CHECKING:
    import argparse

TOOLS: Final = "tool_parsers"
REASONING: Final = "reasoning_parsers"
FLAGS: Final = {TOOLS: "--tool-call-parser", REASONING: "--reasoning-parser"}


@hookimpl
def engine_commands() -> list[Entry]:
    """Give the command."""
    return [Entry("parse", Parse, "show what a client would see of a model's text")]


class Parse:
    """Reads model text on standard input and prints reasoning, content and tool calls."""

    help = "Read model text on standard input; print reasoning, content and tool calls, whole and as they come."
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add parsers, tools, the way to cut the text, and the output format."""
        parser.add_argument(
            "--tool-call-parser", metavar="NAME", help="how the model writes tool calls"
        )
        parser.add_argument(
            "--reasoning-parser", metavar="NAME", help="how the model writes thoughts"
        )
        parser.add_argument(
            "--model", metavar="FOLDER", help="take the parsers that its chat template suggests"
        )
        parser.add_argument("--tools", metavar="FILE", help="JSON: the tools as a request has them")
        parser.add_argument(
            "--prompt-end", metavar="TEXT", default="", help="how the prompt ends, e.g. `<think>`"
        )
        parser.add_argument(
            "--template-kwargs",
            metavar="JSON",
            default="{}",
            help='e.g. `{"enable_thinking": false}`',
        )
        parser.add_argument(
            "--special", metavar="TEXT", action="append", default=[], help="text of a special token"
        )
        parser.add_argument(
            "--chunk-size", type=int, metavar="N", help="cut the text every N characters"
        )
        parser.add_argument("--seed", type=int, metavar="N", help="cut the text at random places")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, context: Any) -> int:
        """Print the whole, or with a way to cut also what each piece brings."""
        args = context.args
        formats = {kind: known_formats(context.registry, kind) for kind in FLAGS}
        names = dict(zip(FLAGS, (args.tool_call_parser, args.reasoning_parser), strict=True))
        if args.model is not None and not all(names.values()):
            found = suggest(template_of(Path(args.model)), formats[TOOLS], formats[REASONING])
            names = {kind: names[kind] or one for kind, one in zip(FLAGS, found, strict=True)}
        described = response_template_of(Path(args.model)) if args.model is not None else None
        chosen = {
            kind: chosen_format(kind, names[kind], formats[kind], described) for kind in FLAGS
        }
        tools = read_file(args.tools) if args.tools else []
        cut = args.chunk_size is not None or args.seed is not None
        template_kwargs = json_value("--template-kwargs", args.template_kwargs)
        request = ParseRequest(
            tools, template_kwargs, args.prompt_end, whole=not cut, in_pieces=cut
        )
        text = sys.stdin.read()

        def new() -> OutputParser:
            return OutputParser(
                request,
                tools=chosen[TOOLS],
                reasoning=chosen[REASONING],
                special=frozenset(args.special),
            )

        whole = new().whole(*spelled(text, args.special))
        steps = []
        if cut:
            steps = list(
                stream(
                    new(),
                    pieces(atoms(text, args.special), args.chunk_size, args.seed),
                    args.special,
                )
            )
        show = print_json if args.json else print_text
        show(names, whole, steps)
        return 0


def chosen_format(
    kind: str, name: str | None, formats: Mapping[str, Any], described: Mapping[str, Any] | None
) -> Any:
    """Return the format of a name, as the checkpoint describes it.

    Raises `ConfigError` for an unknown one.
    """
    if name is None:
        return None
    if name in formats:
        return fitted(formats[name], described)
    raise ConfigError(
        f"{FLAGS[kind]} {name} is not known; there are "
        f"{', '.join(sorted(formats))}{did_you_mean(name, formats)}"
    )


def template_of(folder: Path) -> str:
    """Return the chat template in a model's folder. Raises `ConfigError` where there is none."""
    for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            text = (folder / name).read_text(encoding="utf-8")
            template = text if name.endswith("jinja") else json.loads(text).get("chat_template")
            if template:
                return (
                    template
                    if isinstance(template, str)
                    else json.dumps(template, ensure_ascii=False)
                )
    raise ConfigError(
        f"{folder} has no chat template to suggest parsers from; name them by "
        f"{' and '.join(FLAGS.values())}."
    )


def response_template_of(folder: Path) -> Mapping[str, Any] | None:
    """Return what a model's folder says of how the model writes; None where it says nothing."""
    path = folder / "tokenizer_config.json"
    stated = json_value(str(path), path.read_text(encoding="utf-8")) if path.is_file() else None
    template = stated.get("response_template") if isinstance(stated, Mapping) else None
    return template if isinstance(template, Mapping) else None


def read_file(path: str) -> Any:
    """Return the JSON of a file. Raises `ConfigError` for what is none."""
    try:
        return json_value(path, Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--tools {path} cannot be read: {error.strerror}.") from error


def json_value(source: str, text: str) -> Any:
    """Return a JSON value. Raises `ConfigError` for what is none."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source} is not JSON: {error}.") from error


def spelled(text: str, special: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Return a text and where in it special tokens are spelled."""
    found = []
    at = 0
    for atom in atoms(text, special):
        if atom in special:
            found.append((at, at + len(atom)))
        at += len(atom)
    return text, found


def atoms(text: str, special: Sequence[str]) -> list[str]:
    """Return a text as special tokens and single characters."""
    longest_first = sorted(special, key=len, reverse=True)
    return re.findall("|".join([*map(re.escape, longest_first), "."]), text, re.DOTALL)


def pieces(parts: Sequence[str], size: int | None, seed: int | None) -> Iterator[str]:
    """Yield atoms in pieces of some number, or of random numbers."""
    rng = random.Random(seed)
    at = 0
    while at < len(parts):
        step = max(1, size) if size is not None else rng.randint(1, 12)
        yield "".join(parts[at : at + step])
        at += step


def stream(
    parser: OutputParser, parts: Iterator[str], special: Sequence[str]
) -> Iterator[tuple[str, ParsedDelta]]:
    """Yield each piece and what it brings, at last what the end brings."""
    for part in parts:
        yield part, parser.feed(*spelled(part, special))
    yield "", parser.finish()


def as_json(delta: ParsedDelta, *, indexed: bool = False) -> dict[str, Any]:
    """Return what is in a delta, as a message has it; with an index, calls are what a stream has of
    them.
    """
    calls: dict[int, dict[str, Any]] = {}
    for piece in delta.pieces:
        if isinstance(piece, CallBegun):
            index = {"index": piece.index} if indexed else {}
            calls[piece.index] = {
                **index,
                "id": piece.id,
                "type": "function",
                "function": {"name": piece.name, "arguments": ""},
            }
        elif isinstance(piece, ArgumentsPiece):
            call = calls.setdefault(
                piece.index, {"index": piece.index, "function": {"arguments": ""}}
            )
            call["function"]["arguments"] += piece.text
    fields = {
        "reasoning": delta.reasoning,
        "content": delta.content,
        "tool_calls": [*calls.values()],
    }
    return {name: value for name, value in fields.items() if value}


def print_json(
    names: Mapping[str, str | None], whole: ParsedDelta, steps: Sequence[tuple[str, ParsedDelta]]
) -> None:
    """Print all as one JSON object."""
    found: dict[str, Any] = {FLAGS[kind].removeprefix("--"): name for kind, name in names.items()}
    found["message"] = as_json(whole)
    if whole.recoveries:
        found["recoveries"] = whole.recoveries
    if steps:
        found["stream"] = [
            {"text": text, "delta": as_json(delta, indexed=True)} for text, delta in steps
        ]
    print(json.dumps(found, indent=2, ensure_ascii=False))


def print_text(
    names: Mapping[str, str | None], whole: ParsedDelta, steps: Sequence[tuple[str, ParsedDelta]]
) -> None:
    """Print all by lines."""
    for kind, name in names.items():
        print(f"{FLAGS[kind].removeprefix('--'):<17} {name or 'none'}")
    for text, delta in steps:
        print(
            f"{text!r:<17} "
            f"{json.dumps(as_json(delta, indexed=True), ensure_ascii=False) if as_json(delta) else ''}".rstrip()
        )
    print(f"{'reasoning':<17} {whole.reasoning!r}")
    print(f"{'content':<17} {whole.content!r}")
    for call in whole.calls:
        print(f"{'call':<17} {call.name}({call.arguments}) {call.id}")
    for call in whole.broken:
        print(f"{'broken call':<17} {call.name}({call.arguments}")
    for what in whole.recoveries:
        print(f"{'recovered':<17} {what}")
