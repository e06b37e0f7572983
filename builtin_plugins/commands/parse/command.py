"""The command `engine parse`: shows how model text is parsed, whole and streamed."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.model_sources.api import read_settings_object, read_settings_text
from builtin_plugins.output_parsers.api import (
    ArgumentsPiece,
    CallBegun,
    OutputParser,
    ParsedDelta,
    ParseRequest,
    fit_format,
    known_formats,
    suggest_parsers,
)
from core.api import ConfigError, did_you_mean
from core.api.config import read_option_json

if TYPE_CHECKING:
    import argparse

    from core.api import CommandContext

TOOLS: Final = "tool_parsers"
REASONING: Final = "reasoning_parsers"
FLAGS: Final = {TOOLS: "--tool-call-parser", REASONING: "--reasoning-parser"}


class Parse:
    """Parses model text from standard input into reasoning, content and tool calls."""

    help = (
        "Parse model text from standard input into reasoning, content and tool calls, "
        "whole and streamed."
    )
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add parsers, tools, chunking and the output format."""
        parser.add_argument(
            "--tool-call-parser", metavar="NAME", help="how the model writes tool calls"
        )
        parser.add_argument(
            "--reasoning-parser", metavar="NAME", help="how the model writes reasoning"
        )
        parser.add_argument(
            "--model", metavar="FOLDER", help="use the parsers suggested by its chat template"
        )
        parser.add_argument("--tools", metavar="FILE", help="JSON file with the tools of a request")
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
            "--chunk-size", type=int, metavar="N", help="split the text every N characters"
        )
        parser.add_argument(
            "--seed", type=int, metavar="N", help="split the text at random positions"
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, context: CommandContext) -> int:
        """Print the parsed message, and the stream of deltas when chunking is set."""
        args = context.args
        formats = {kind: known_formats(context.registry, kind) for kind in FLAGS}
        names = dict(zip(FLAGS, (args.tool_call_parser, args.reasoning_parser), strict=True))
        if args.model is not None and not all(names.values()):
            found = suggest_parsers(
                find_template(Path(args.model)), formats[TOOLS], formats[REASONING]
            )
            names = {kind: names[kind] or one for kind, one in zip(FLAGS, found, strict=True)}
        described = find_response_template(Path(args.model)) if args.model is not None else None
        chosen = {kind: find_format(kind, names[kind], formats[kind], described) for kind in FLAGS}
        tools = read_option_json("--tools", args.tools) if args.tools else []
        chunked = args.chunk_size is not None or args.seed is not None
        template_kwargs = json_value("--template-kwargs", args.template_kwargs)
        request = ParseRequest(
            tools, template_kwargs, args.prompt_end, whole=not chunked, stream_calls=chunked
        )
        text = sys.stdin.read()

        def new() -> OutputParser:
            return OutputParser(
                request,
                tools=chosen[TOOLS],
                reasoning=chosen[REASONING],
                special=frozenset(args.special),
            )

        whole = new().whole(*locate_special(text, args.special))
        steps = []
        if chunked:
            steps = list(
                stream(
                    new(),
                    chunks(split_atoms(text, args.special), args.chunk_size, args.seed),
                    args.special,
                )
            )
        show = print_json if args.json else print_text
        show(names, whole, steps)
        return 0


def find_format(
    kind: str, name: str | None, formats: Mapping[str, Any], described: Mapping[str, Any] | None
) -> Any:
    """Return a format by name, adapted to the checkpoint.

    Raises `ConfigError` for an unknown name.
    """
    if name is None:
        return None
    if name in formats:
        return fit_format(formats[name], described)
    raise ConfigError(
        f"{FLAGS[kind]}: got {name}; expected one of "
        f"{', '.join(sorted(formats))}{did_you_mean(name, formats)}"
    )


def find_template(folder: Path) -> str:
    """Return the chat template in a model folder. Raises `ConfigError` for none."""
    for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            template = (
                read_settings_text(folder / name)
                if name.endswith("jinja")
                else read_settings_object(folder / name).get("chat_template")
            )
            if template:
                return (
                    template
                    if isinstance(template, str)
                    else json.dumps(template, ensure_ascii=False)
                )
    raise ConfigError(
        f"--model: got {folder}; expected a folder with a chat template. "
        f"Set {' and '.join(FLAGS.values())}."
    )


def find_response_template(folder: Path) -> Mapping[str, Any] | None:
    """Return the response template in a model folder; None for none."""
    path = folder / "tokenizer_config.json"
    stated = read_settings_object(path) if path.is_file() else {}
    template = stated.get("response_template")
    return template if isinstance(template, Mapping) else None


def json_value(source: str, text: str) -> Any:
    """Return a parsed JSON value. Raises `ConfigError` for invalid JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: expected JSON: {error}.") from error


def locate_special(text: str, special: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Return a text and the spans of its special tokens."""
    found = []
    at = 0
    for atom in split_atoms(text, special):
        if atom in special:
            found.append((at, at + len(atom)))
        at += len(atom)
    return text, found


def split_atoms(text: str, special: Sequence[str]) -> list[str]:
    """Split a text into special tokens and single characters."""
    longest_first = sorted(special, key=len, reverse=True)
    return re.findall("|".join([*map(re.escape, longest_first), "."]), text, re.DOTALL)


def chunks(parts: Sequence[str], size: int | None, seed: int | None) -> Iterator[str]:
    """Yield chunks of `size` atoms, or of random sizes."""
    rng = random.Random(seed)
    at = 0
    while at < len(parts):
        step = max(1, size) if size is not None else rng.randint(1, 12)
        yield "".join(parts[at : at + step])
        at += step


def stream(
    parser: OutputParser, parts: Iterator[str], special: Sequence[str]
) -> Iterator[tuple[str, ParsedDelta]]:
    """Yield each chunk and its delta; at last an empty chunk and the final delta."""
    for part in parts:
        yield part, parser.feed(*locate_special(part, special))
    yield "", parser.finish()


def as_json(delta: ParsedDelta, *, indexed: bool = False) -> dict[str, Any]:
    """Return a delta as a message; with `indexed` as a stream event."""
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
    """Print the result as one JSON object."""
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
    """Print the result line by line."""
    for kind, name in names.items():
        print(f"{FLAGS[kind].removeprefix('--'):<17} {name or 'none'}")
    for text, delta in steps:
        event = as_json(delta, indexed=True)
        line = json.dumps(event, ensure_ascii=False) if as_json(delta) else ""
        print(f"{text!r:<17} {line}".rstrip())
    print(f"{'reasoning':<17} {whole.reasoning!r}")
    print(f"{'content':<17} {whole.content!r}")
    for call in whole.calls:
        print(f"{'call':<17} {call.name}({call.arguments}) {call.id}")
    for call in whole.broken:
        print(f"{'broken call':<17} {call.name}({call.arguments}")
    for what in whole.recoveries:
        print(f"{'recovered':<17} {what}")
