"""Reads a tokenizer's settings files: special tokens by role, and the chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from builtin_plugins.model_sources.api import read_settings_object, read_settings_text

ROLES: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """Values of tokenizer_config.json and related files."""

    special_tokens: dict[str, str] = field(default_factory=dict)
    """Text of each special token by role ("eos_token")."""
    chat_template: str | dict[str, str] | None = None
    """Jinja template, or several by name."""
    response_template: dict[str, Any] | None = None
    """Template that describes the model's output format."""
    template_text: str = ""
    """The text of all chat templates."""
    add_bos: bool | None = None
    """Whether to prepend the BOS token; None: as in tokenizer.json."""
    add_eos: bool | None = None
    """Whether to append the EOS token; None: as in tokenizer.json."""


def read_settings(folder: Path, given: str | None = None) -> TokenizerSettings:
    """Return the settings of a folder; absent files count as empty. Raises `ModelError` for broken
    ones.

    `given` is the `--chat-template`: a name, a file or a text.
    """
    stated = _read(folder / "tokenizer_config.json")
    roles = {**_read(folder / "special_tokens_map.json"), **stated}
    template = _chat_template(folder, stated)
    texts = {role: _text(roles.get(role)) for role in ROLES}
    return TokenizerSettings(
        special_tokens={role: text for role, text in texts.items() if text is not None},
        chat_template=template,
        response_template=response
        if isinstance(response := stated.get("response_template"), dict)
        else None,
        template_text=_template_text(template, given),
        add_bos=stated.get("add_bos_token"),
        add_eos=stated.get("add_eos_token"),
    )


def _chat_template(folder: Path, stated: Mapping[str, Any]) -> str | dict[str, str] | None:
    """Return the template, or several by name; template files override tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        others = {
            file.stem: read_settings_text(file)
            for file in sorted(folder.glob("additional_chat_templates/*.jinja"))
        }
        return (
            {"default": read_settings_text(path), **others} if others else read_settings_text(path)
        )
    template = _read(folder / "chat_template.json").get("chat_template") or stated.get(
        "chat_template"
    )
    if isinstance(template, list):
        named = {
            item.get("name"): item.get("template") for item in template if isinstance(item, Mapping)
        }
        return {
            name: text
            for name, text in named.items()
            if isinstance(name, str) and isinstance(text, str)
        }
    return template if isinstance(template, str) else None


def _template_text(template: str | Mapping[str, str] | None, given: str | None) -> str:
    """Return the text of the model's templates and of the given one."""
    texts = [template] if isinstance(template, str) else list((template or {}).values())
    if given is not None and ("{" in given or "\n" in given):
        texts.append(given)
    elif given is not None and Path(given).is_file():
        texts.append(read_settings_text(Path(given)))
    return "\n".join(texts)


def _text(value: Any) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _read(path: Path) -> dict[str, Any]:
    return read_settings_object(path) if path.is_file() else {}
