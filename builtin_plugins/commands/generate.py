"""`engine generate`: answers prompts in this process and streams the text."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import typing
from typing import TYPE_CHECKING, Any, cast

from core.api import ConfigError, Entry, SamplingParams, hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core import LLM, PromptType, TokensPrompt
    from core.api import CommandContext, EngineConfig, RequestOutput

SAMPLING = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
"""Sampling parameters that are flags; `--seed` is the engine's."""
MAX_TOKENS = 256
"""Default of --max-tokens, a bound for models that never stop."""
CHAT_NOTE = "The prompt is a user message of the model's chat template; --raw completes it as text."
"""Note on a terminal."""


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the command."""
    return [Entry("generate", Generate, "answer or complete prompts in this process")]


class Generate:
    """Answers prompts from `--prompt` or standard input (one prompt).

    A prompt is a user message if the model has a chat template; otherwise it is completed.
    """

    help = "Answer or complete prompts in this process and stream the text."
    takes_engine_options = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add prompts, sampling parameters and output format."""
        parser.add_argument(
            "model", nargs="?", help="local folder or hub id; without one, a small demo model"
        )
        parser.add_argument(
            "--prompt",
            action="append",
            metavar="TEXT",
            help="may be repeated; default: standard input",
        )
        parser.add_argument(
            "--raw",
            action="store_true",
            help="complete the text as it is, also if the model has a chat template",
        )
        parser.add_argument(
            "--stop",
            action="append",
            metavar="TEXT",
            help="text that ends the output; may be repeated",
        )
        parser.add_argument(
            "--ignore-eos",
            action="store_true",
            default=None,
            help="ignore end tokens",
        )
        hints = typing.get_type_hints(SamplingParams, include_extras=True)
        for name in SAMPLING:
            hint, bound = typing.get_args(hints[name])
            kind, metavar = (float, "FLOAT") if hint is float else (int, "INT")
            default, note = (
                (MAX_TOKENS, f" (default: {MAX_TOKENS})") if name == "max_tokens" else (None, "")
            )
            flag = "--" + name.replace("_", "-")
            parser.add_argument(
                flag, type=kind, default=default, metavar=metavar, help=bound.doc + note
            )
        parser.add_argument(
            "--json", action="store_true", help="print one JSON object per completed prompt"
        )
        parser.add_argument(
            "--no-stream", action="store_true", help="print each text when it is complete"
        )

    def run(self, context: CommandContext) -> int:
        """Generate; return 1 if a request failed."""
        given = {name: getattr(context.args, name) for name in (*SAMPLING, "stop", "ignore_eos")}
        chosen = {name: value for name, value in given.items() if value is not None}
        SamplingParams(**chosen)  # fail on invalid parameters before the model loads
        prompts = context.args.prompt or [_read_prompt()]
        # lazy: torch is slow to import
        from core import LLM

        with LLM.from_config(context.config, context.registry) as llm:
            sampling = llm.get_default_sampling_params().clone(**chosen)
            is_chat = not context.args.raw and _has_chat_template(llm, context.config)
            if is_chat and sys.stderr.isatty():
                print(CHAT_NOTE, file=sys.stderr)
            ready: Sequence[PromptType] = _rendered(llm, prompts) if is_chat else prompts
            if context.args.json or context.args.no_stream or len(prompts) > 1:
                outputs = llm.generate(ready, sampling, use_tqdm=False)
                for prompt, output in zip(prompts, outputs, strict=True):
                    print(
                        json.dumps(_as_json(prompt, output))
                        if context.args.json
                        else output.outputs[0].text
                    )
            else:
                outputs = [_stream(llm, ready[0], sampling)]
        failed = [output for output in outputs if output.error]
        for output in failed:
            print(f"request failed: {output.error}", file=sys.stderr)
        return 1 if failed else 0


def _read_prompt() -> str:
    if sys.stdin.isatty():
        raise ConfigError("no prompt: give --prompt TEXT, or a text on standard input.")
    text = sys.stdin.read().rstrip("\n")
    if not text:
        raise ConfigError(
            "no prompt: standard input is empty; give --prompt TEXT or pipe a text in."
        )
    return text


def _has_chat_template(llm: LLM, config: EngineConfig) -> bool:
    tokenizer = llm.get_tokenizer()
    return tokenizer is not None and bool(config.model.chat_template or tokenizer.chat_template)


def _rendered(llm: LLM, prompts: Sequence[str]) -> list[PromptType]:
    """Return the token prompts of conversations of one user message each."""
    conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
    return [cast("TokensPrompt", prompt) for prompt in llm.preprocess_chat(conversations)]


def _stream(llm: LLM, prompt: PromptType, sampling: SamplingParams) -> RequestOutput:
    """Print pieces as they arrive and return the final output."""
    printed = ""
    llm.add_request("0", prompt, sampling)
    while True:
        for output in llm.step():
            text = output.outputs[0].text
            sys.stdout.write(text[len(printed) :])
            sys.stdout.flush()
            printed = text
            if output.finished:
                sys.stdout.write("\n")
                return output


def _as_json(prompt: str, output: RequestOutput) -> dict[str, Any]:
    best = output.outputs[0]
    return {
        "prompt": prompt,
        "text": best.text,
        "token_ids": list(best.token_ids),
        "finish_reason": best.finish_reason,
        "stop_reason": best.stop_reason,
        "num_cached_tokens": output.num_cached_tokens,
        "metrics": dataclasses.asdict(output.metrics) if output.metrics else None,
        "error": output.error,
    }
