"""The commands `engine chat` and `engine complete`: interactive clients of a server.

Ctrl-C cancels the current response. Ctrl-D or the end of a pipe exits.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.commands.chat.client import Client
from builtin_plugins.commands.chat.images import Attachments
from core.api import EngineError
from core.api.config import read_environment

if TYPE_CHECKING:
    import argparse

    from core.api import CommandContext

URL: Final = "http://localhost:8000/v1"
CONTROL_CHARACTERS: Final = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)))
"""Control characters removed from terminal output; line feeds and tabs pass."""

IMAGE: Final = "/image "
"""Start of a line with the path of an image for the next message."""
Send = Callable[[str], Iterator[str]]
"""Sends the user's text and yields the response in pieces."""


class Chat:
    """Interactive chat that sends the whole conversation with each turn."""

    help = "Chat with a model of a running server."
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the server address and the system prompt."""
        _add_server(parser)
        parser.add_argument(
            "--system-prompt", metavar="TEXT", help="system message of the conversation"
        )
        parser.add_argument(
            "-q", "--quick", metavar="MESSAGE", help="send this, print the response and exit"
        )
        parser.add_argument(
            "--image",
            metavar="PATH",
            action="append",
            default=[],
            help="image of the first message; can be repeated",
        )

    def run(self, context: CommandContext) -> int:
        """Chat until the user exits; return 1 for a failed request without a terminal."""
        args = context.args
        client, model = _connect(args)
        history: list[dict[str, Any]] = []
        if args.system_prompt:
            history.append({"role": "system", "content": args.system_prompt})
        images = Attachments()
        for path in args.image:
            images.add(path)

        def send(message: str) -> Iterator[str]:
            turn = {"role": "user", "content": images.content_with(message)}
            answer = ""
            try:
                for event in client.stream(
                    "/chat/completions", {"model": model, "messages": [*history, turn]}
                ):
                    for choice in event.get("choices", ()):
                        piece = choice.get("delta", {}).get("content") or ""
                        answer += piece
                        yield piece
            finally:
                if answer:  # a cancelled response is part of the conversation
                    history.extend((turn, {"role": "assistant", "content": answer}))

        return _converse(
            send,
            args.quick,
            f"Chatting with {model} at {client.url}. {IMAGE}PATH adds an image to the next "
            "message, Ctrl-C cancels a response, Ctrl-D exits.",
            images.add,
        )


class Complete:
    """Interactive completion of independent prompts."""

    help = "Let a running server complete texts."
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the server address and the token limit."""
        _add_server(parser)
        parser.add_argument(
            "--max-tokens",
            type=int,
            metavar="N",
            help="maximum number of generated tokens; default: that of the server",
        )
        parser.add_argument("-q", "--quick", metavar="PROMPT", help="complete this and exit")

    def run(self, context: CommandContext) -> int:
        """Complete until the user exits; return 1 for a failed request without a terminal."""
        args = context.args
        client, model = _connect(args)
        chosen = {} if args.max_tokens is None else {"max_tokens": args.max_tokens}

        def send(prompt: str) -> Iterator[str]:
            for event in client.stream(
                "/completions", {"model": model, "prompt": prompt, **chosen}
            ):
                for choice in event.get("choices", ()):
                    yield choice.get("text") or ""

        return _converse(
            send,
            args.quick,
            f"Completing with {model} at {client.url}. Ctrl-C cancels a response, Ctrl-D exits.",
        )


def _add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=URL, help=f"address of the API (default: {URL})")
    parser.add_argument("--model-name", metavar="NAME", help="default: the first the server lists")
    parser.add_argument("--api-key", metavar="KEY", help="default: ENGINE_API_KEY")


def _connect(args: argparse.Namespace) -> tuple[Client, str]:
    """Return a client and the model name.

    Raises `EngineError` when the server lists no model.
    """
    client = Client(args.url, args.api_key or read_environment().get("ENGINE_API_KEY"))
    if args.model_name:
        return client, args.model_name
    models = client.models()
    if not models:
        raise EngineError(f"{client.url} lists no model. Set --model-name.")
    return client, models[0]


def _converse(
    send: Send, quick: str | None, greeting: str, add_image: Callable[[str], None] | None = None
) -> int:
    if quick is not None:
        _show(send(quick))
        return 0
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with contextlib.suppress(ImportError):
            # lazy: adds history and editing of the input, where available
            import readline  # noqa: F401

        print(greeting, file=sys.stderr)
    failed = False
    for message in _read(is_terminal):
        try:
            if add_image is not None and message.startswith(IMAGE):
                add_image(message.removeprefix(IMAGE))
            else:
                _show(send(message))
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            print()
        except EngineError as error:
            failed = True
            print(f"engine: error: {error}", file=sys.stderr)
    return int(failed and not is_terminal)


def _read(is_terminal: bool) -> Iterator[str]:
    """Yield the user's input line by line."""
    while True:
        try:
            line = input("> " if is_terminal else "")
        except EOFError:
            if is_terminal:
                print()
            return
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            print()
            continue
        if line.strip():
            yield line


def _show(pieces: Iterator[str]) -> None:
    """Print the pieces as they arrive, then a line feed."""
    out = sys.stdout
    encoding = out.encoding or "utf-8"
    try:
        for piece in pieces:
            text = piece.translate(CONTROL_CHARACTERS) if out.isatty() else piece
            out.write(text.encode(encoding, "replace").decode(encoding))
            out.flush()
    finally:
        close: Callable[[], None] | None = getattr(pieces, "close", None)
        if close is not None:
            close()  # cancels the request at once
    out.write("\n")
