"""The commands: read what the user says, print what the server answers as it comes.

Ctrl-C ends the answer that is being printed, Ctrl-D (or the end of a pipe) the program.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.commands.chat.client import Client
from core.api import EngineError
from core.config.env import read_environment

if TYPE_CHECKING:
    import argparse

URL: Final = "http://localhost:8000/v1"
CONTROLS: Final = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)))
"""What a terminal would obey instead of showing it; line feeds and tabs are not among them."""

Say = Callable[[str], Iterator[str]]
"""Sends what the user said and yields the answer piece by piece."""


class Chat:
    """A conversation: the server is told all that was said before."""

    help = "Talk with a model of a running server."
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add where the server is and what it is told."""
        _add_server(parser)
        parser.add_argument(
            "--system-prompt", metavar="TEXT", help="what the model is told before the conversation"
        )
        parser.add_argument(
            "-q", "--quick", metavar="MESSAGE", help="say this, print the answer and leave"
        )

    def run(self, context: Any) -> int:
        """Talk until the user leaves; return 1 when a request failed that nobody could see fail."""
        args = context.args
        client, model = _connect(args)
        told = [{"role": "system", "content": args.system_prompt}] if args.system_prompt else []

        def say(message: str) -> Iterator[str]:
            turn = {"role": "user", "content": message}
            answer = ""
            try:
                for event in client.stream(
                    "/chat/completions", {"model": model, "messages": [*told, turn]}
                ):
                    for choice in event.get("choices", ()):
                        piece = choice.get("delta", {}).get("content") or ""
                        answer += piece
                        yield piece
            finally:
                if answer:  # whole or cut off by the user: it was said
                    told.extend((turn, {"role": "assistant", "content": answer}))

        return _converse(
            say,
            args.quick,
            f"Talking with {model} at {client.url}. Ctrl-C ends an answer, Ctrl-D leaves.",
        )


class Complete:
    """Completion of texts, each for itself."""

    help = "Let a running server complete texts."
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add where the server is and how much it shall write."""
        _add_server(parser)
        parser.add_argument(
            "--max-tokens",
            type=int,
            metavar="N",
            help="most tokens to generate; default: the server's",
        )
        parser.add_argument("-q", "--quick", metavar="PROMPT", help="complete this and leave")

    def run(self, context: Any) -> int:
        """Complete until the user leaves; return 1 when a request failed that nobody could see
        fail.
        """
        args = context.args
        client, model = _connect(args)
        chosen = {} if args.max_tokens is None else {"max_tokens": args.max_tokens}

        def say(prompt: str) -> Iterator[str]:
            for event in client.stream(
                "/completions", {"model": model, "prompt": prompt, **chosen}
            ):
                for choice in event.get("choices", ()):
                    yield choice.get("text") or ""

        return _converse(
            say,
            args.quick,
            f"{model} at {client.url} completes. Ctrl-C ends a text, Ctrl-D leaves.",
        )


def _add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=URL, help=f"address of the API (default: {URL})")
    parser.add_argument("--model-name", metavar="NAME", help="default: the first the server lists")
    parser.add_argument("--api-key", metavar="KEY", help="default: ENGINE_API_KEY")


def _connect(args: argparse.Namespace) -> tuple[Client, str]:
    """Return the server's client and the name of the model.

    Raises `EngineError` when there is none.
    """
    client = Client(args.url, args.api_key or read_environment().get("ENGINE_API_KEY"))
    if args.model_name:
        return client, args.model_name
    models = client.models()
    if not models:
        raise EngineError(f"{client.url} lists no model; name one with --model-name.")
    return client, models[0]


def _converse(say: Say, quick: str | None, greeting: str) -> int:
    if quick is not None:
        _show(say(quick))
        return 0
    seen = sys.stdin.isatty()
    if seen:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - lazy: gives what is entered a history and editing, where there is one

        print(greeting, file=sys.stderr)
    failed = False
    for message in _read(seen):
        try:
            _show(say(message))
        except KeyboardInterrupt:
            if not seen:
                raise
            print()
        except EngineError as error:
            failed = True
            print(f"engine: error: {error}", file=sys.stderr)
    return int(failed and not seen)


def _read(seen: bool) -> Iterator[str]:
    """Yield what the user enters, line by line, until there is no more."""
    while True:
        try:
            line = input("> " if seen else "")
        except EOFError:
            if seen:
                print()
            return
        except KeyboardInterrupt:
            if not seen:
                raise
            print()
            continue
        if line.strip():
            yield line


def _show(pieces: Iterator[str]) -> None:
    """Print the pieces as they come, and a line feed."""
    out = sys.stdout
    encoding = out.encoding or "utf-8"
    try:
        for piece in pieces:
            text = piece.translate(CONTROLS) if out.isatty() else piece
            out.write(text.encode(encoding, "replace").decode(encoding))
            out.flush()
    finally:
        close: Callable[[], None] | None = getattr(pieces, "close", None)
        if close is not None:
            close()  # at once, so that the server need not go on with an answer nobody reads
    out.write("\n")
