"""The tokenizer of a GGUF file as the files of a Hugging Face tokenizer, and the tokens that have a role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.api import ModelError
from engine_gguf.bpe import byte_level
from engine_gguf.pieces import sentence_pieces
from engine_gguf.settings import Settings
from engine_gguf.splits import BEGUN

_UNKNOWN, _CONTROL, _USER = 2, 3, 4
"""Types of tokens: what stands for none, what is said to the model, what is found in a text before all else."""
_ROLES: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",
    "pad_token": "padding_token_id",
}
"""The names that llama.cpp writes, one of them misspelt."""
_ENDS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")
_ENDING_TEXTS: Final = frozenset(
    (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<EOT>",
        "[EOT]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<｜end▁of▁sentence｜>",
        "<|return|>",
        "<|call|>",
    )
)
"""Control tokens that end a turn, whatever else the settings say."""
_GIVE: Final = "Give the tokenizer of the model it was made from with --tokenizer."


def ends(settings: Settings, tokens: Sequence[str]) -> tuple[int, ...]:
    """Return the tokens that end a text."""
    stated = [settings.token(f"tokenizer.ggml.{name}", len(tokens)) for name in _ENDS]
    types = settings.numbers("tokenizer.ggml.token_type", len(tokens))
    spelt = [n for n, text in enumerate(tokens) if text in _ENDING_TEXTS and (types is None or types[n] == _CONTROL)]
    return tuple(dict.fromkeys([token for token in stated if token is not None] + spelt))


def tokenizer_files(settings: Settings) -> dict[str, Any]:
    """Return the contents of tokenizer.json and tokenizer_config.json; nothing for a file without a tokenizer.

    Raises `ModelError` for one that is not known or that cannot be.
    """
    model = settings.text("tokenizer.ggml.model", "none")
    if model in ("none", "no_vocab"):
        return {}
    tokens = _distinct(settings.texts("tokenizer.ggml.tokens"))
    types = settings.numbers("tokenizer.ggml.token_type", len(tokens))
    kinds = [1] * len(tokens) if types is None else types.tolist()
    roles = {role: settings.token(f"tokenizer.ggml.{name}", len(tokens)) for role, name in _ROLES.items()}
    splits = settings.text("tokenizer.ggml.pre", "default")
    begins = settings.flag("tokenizer.ggml.add_bos_token", model == "llama" or splits in BEGUN)
    if model == "gpt2":
        fields = byte_level(tokens, settings.texts("tokenizer.ggml.merges"), splits)
    elif model == "llama":
        scores = settings.numbers("tokenizer.ggml.scores", len(tokens))
        if scores is None:
            raise ModelError(f"its tokenizer has pieces without scores. {_GIVE}")
        unknown = roles["unk_token"]
        if unknown is None:
            unknown = next((number for number, kind in enumerate(kinds) if kind == _UNKNOWN), None)
        begun = settings.flag("tokenizer.ggml.add_space_prefix", True)
        fields = sentence_pieces(tokens, scores.tolist(), unknown, begun)
    else:
        raise ModelError(f"its tokenizer is of the kind {model!r:.60}; gpt2 and llama are read. {_GIVE}")
    bos = roles["bos_token"]
    before = [] if bos is None or not begins else [bos]
    eos, ended = roles["eos_token"], settings.flag("tokenizer.ggml.add_eos_token")
    after = [] if eos is None or not ended else [eos]
    return {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                _added(n, tokens[n], kind) for n, kind in enumerate(kinds) if kind in (_CONTROL, _USER, _UNKNOWN)
            ],
            "post_processor": _template(before, after, tokens),
            **fields,
        },
        "tokenizer_config.json": {
            **{role: tokens[number] for role, number in roles.items() if number is not None},
            "add_bos_token": bool(before),
            "add_eos_token": bool(after),
            **_templates(settings),
        },
    }


def _distinct(tokens: Sequence[str]) -> list[str]:
    """Return the tokens with those spelt anew that cannot be told from an earlier one, as bytes that are no text."""
    seen: set[str] = set()
    out = []
    for number, token in enumerate(tokens):
        while token in seen:
            token = f"<{token}:{number}>"
        seen.add(token)
        out.append(token)
    return out


def _added(number: int, text: str, kind: int) -> Mapping[str, Any]:
    facts = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **facts, "special": kind != _USER}


def _template(before: Sequence[int], after: Sequence[int], tokens: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the step that puts tokens around each text."""
    if not before and not after:
        return None

    def around(name: str, kind: int) -> list[Any]:
        first, last = ([{"SpecialToken": {"id": tokens[n], "type_id": kind}} for n in own] for own in (before, after))
        return [*first, {"Sequence": {"id": name, "type_id": kind}}, *last]

    named = {tokens[n]: {"id": tokens[n], "ids": [n], "tokens": [tokens[n]]} for n in (*before, *after)}
    one = around("A", 0)
    return {"type": "TemplateProcessing", "single": one, "pair": one + around("B", 1), "special_tokens": named}


def _templates(settings: Settings) -> Mapping[str, Any]:
    """Return the chat template; of several, each by its name."""
    template = settings.get("tokenizer.chat_template")
    names = settings.get("tokenizer.chat_templates")
    if not isinstance(template, str):
        return {}
    others = {
        name: text
        for name in (names if isinstance(names, list) else [])
        if isinstance(text := settings.get(f"tokenizer.chat_template.{name}"), str)
    }
    if not others:
        return {"chat_template": template}
    return {
        "chat_template": [{"name": name, "template": text} for name, text in {"default": template, **others}.items()]
    }
