"""The tokenizer of a GGUF file as Hugging Face tokenizer files, and its special tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from core.api import ModelError
from engine_gguf.settings import Settings
from engine_gguf.splits import ADDS_BOS
from engine_gguf.tokenizer_models import (
    byte_level_bpe,
    known_merges,
    sentencepiece_bpe,
    unigram_model,
    wordpiece_model,
)

_UNKNOWN = 2
_CONTROL = 3
_USER = 4
_BYTE = 6
"""Token types: unknown, control, user-defined, byte."""
_OF_BERT: Final = {"bos_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
_READ: Final = ("bert", "gemma4", "gpt2", "llama", "t5")
_BEGUN: Final = ("bert", "gemma4", "llama")
"""Tokenizer types with a BOS token before each text, unless the file says otherwise."""
_ROLES: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",
    "pad_token": "padding_token_id",
    "mask_token": "mask_token_id",
}
"""llama.cpp's names, one of them misspelt."""
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
"""Control tokens that end a turn, whatever the settings say."""
_GIVE: Final = "Give the tokenizer of the model it was made from with --tokenizer."


def ends(settings: Settings, tokens: Sequence[str]) -> tuple[int, ...]:
    """Return the tokens that end an output."""
    stated = [settings.token(f"tokenizer.ggml.{name}", len(tokens)) for name in _ENDS]
    types = settings.numbers("tokenizer.ggml.token_type", len(tokens))
    spelt = [
        n
        for n, text in enumerate(tokens)
        if text in _ENDING_TEXTS and (types is None or types[n] == _CONTROL)
    ]
    return tuple(dict.fromkeys([token for token in stated if token is not None] + spelt))


def tokenizer_files(settings: Settings) -> dict[str, Any]:
    """Return the contents of tokenizer.json and tokenizer_config.json, empty without a tokenizer.

    Raises `ModelError` for an unknown or invalid one.
    """
    model = settings.text("tokenizer.ggml.model", "none")
    if model in ("none", "no_vocab"):
        return {}
    tokens = _distinct(settings.texts("tokenizer.ggml.tokens"))
    types = settings.numbers("tokenizer.ggml.token_type", len(tokens))
    kinds = [1] * len(tokens) if types is None else types.tolist()
    roles = {
        role: settings.token(f"tokenizer.ggml.{name}", len(tokens)) for role, name in _ROLES.items()
    }
    if model == "bert":  # [CLS] and [SEP]; older files do not name them
        roles["bos_token"] = (
            settings.token("tokenizer.ggml.cls_token_id", len(tokens)) or roles["bos_token"]
        )
        for role, text in _OF_BERT.items():
            if roles[role] is None and text in tokens:
                roles[role] = tokens.index(text)
    splits = settings.text("tokenizer.ggml.pre", "default")
    fields = _fields(settings, model, tokens, kinds, roles["unk_token"], splits)
    begins = settings.flag(
        "tokenizer.ggml.add_bos_token", model in _BEGUN or (model == "gpt2" and splits in ADDS_BOS)
    )
    ended = settings.flag("tokenizer.ggml.add_eos_token", model == "t5")
    closing = roles["eos_token"]
    if model == "bert" or settings.flag("tokenizer.ggml.add_sep_token"):
        ended = True
        closing = closing if roles["sep_token"] is None else roles["sep_token"]
    bos = roles["bos_token"]
    before = [] if bos is None or not begins else [bos]
    after = [] if closing is None or not ended else [closing]
    return {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                _added(n, tokens[n], kind)
                for n, kind in enumerate(kinds)
                if kind in (_CONTROL, _USER, _UNKNOWN)
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


def _fields(
    settings: Settings,
    model: str,
    tokens: Sequence[str],
    kinds: Sequence[int],
    unknown: int | None,
    splits: str,
) -> dict[str, Any]:
    """Return the fields of tokenizer.json that depend on the tokenizer type."""
    if model == "gpt2":
        return byte_level_bpe(tokens, settings.texts("tokenizer.ggml.merges"), splits)
    if unknown is None:
        unknown = next((number for number, kind in enumerate(kinds) if kind == _UNKNOWN), None)
    if model == "bert":
        lower = settings.flag("tokenizer.ggml.normalizer.lowercase", True)
        accents = settings.flag("tokenizer.ggml.normalizer.strip_accents", lower)
        return wordpiece_model(
            tokens, [kind == _CONTROL for kind in kinds], unknown, lower=lower, strip=accents
        )
    begun = settings.flag("tokenizer.ggml.add_space_prefix", True)
    if model == "gemma4":
        merged = known_merges(
            {token: n for n, token in enumerate(tokens)}, settings.texts("tokenizer.ggml.merges")
        )
        return sentencepiece_bpe(tokens, (), unknown, begun, merged)
    if model not in ("llama", "t5"):
        raise ModelError(
            f"tokenizer.ggml.model: got {model!r:.60}; expected one of {', '.join(_READ)}. {_GIVE}"
        )
    scores = settings.numbers("tokenizer.ggml.scores", len(tokens))
    if scores is None:
        raise ModelError(f"tokenizer.ggml.scores is missing. {_GIVE}")
    if model == "llama":
        return sentencepiece_bpe(tokens, scores.tolist(), unknown, begun)
    charsmap = settings.get("tokenizer.ggml.precompiled_charsmap")
    if charsmap is not None and not isinstance(charsmap, np.ndarray):
        raise settings.wrong("tokenizer.ggml.precompiled_charsmap", charsmap, "a list of bytes")
    collapses_spaces = settings.flag("tokenizer.ggml.remove_extra_whitespaces", True)
    return unigram_model(
        tokens,
        scores.tolist(),
        unknown,
        has_bytes=_BYTE in kinds,
        charsmap=charsmap,
        adds_space=begun,
        collapses_spaces=collapses_spaces,
    )


def _distinct(tokens: Sequence[str]) -> list[str]:
    """Return the tokens, with later duplicates renamed; invalid bytes decode to equal texts."""
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


def _template(
    before: Sequence[int], after: Sequence[int], tokens: Sequence[str]
) -> Mapping[str, Any] | None:
    """Return the post-processor that adds tokens around each text."""
    if not before and not after:
        return None

    def around(name: str, kind: int) -> list[Any]:
        first, last = (
            [{"SpecialToken": {"id": tokens[n], "type_id": kind}} for n in own]
            for own in (before, after)
        )
        return [*first, {"Sequence": {"id": name, "type_id": kind}}, *last]

    named = {
        tokens[n]: {"id": tokens[n], "ids": [n], "tokens": [tokens[n]]} for n in (*before, *after)
    }
    one = around("A", 0)
    return {
        "type": "TemplateProcessing",
        "single": one,
        "pair": one + around("B", 1),
        "special_tokens": named,
    }


def _templates(settings: Settings) -> Mapping[str, Any]:
    """Return the chat template, or several by name."""
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
        "chat_template": [
            {"name": name, "template": text}
            for name, text in {"default": template, **others}.items()
        ]
    }
