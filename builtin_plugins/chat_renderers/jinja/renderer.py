"""Chat renderer for Jinja templates, equal to transformers' `apply_chat_template`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.optimizer import optimize

from builtin_plugins.chat_renderers.jinja.budget import joined
from builtin_plugins.chat_renderers.jinja.control_text import ControlTexts, TemplateMarks
from builtin_plugins.chat_renderers.jinja.environment import chat_environment
from builtin_plugins.chat_renderers.jinja.mending import alternatives, lost_message
from builtin_plugins.chat_renderers.jinja.messages import has_media, plain_messages
from builtin_plugins.chat_renderers.surrogates import value_without_lone_surrogates
from core.api import ConfigError, EngineConfig, InvalidRequest
from core.api.config import read_option_text
from core.api.models import ModelSource
from core.api.serving import Tokenizer

log = logging.getLogger(__name__)

_RESERVED = (
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
)
CONTENT_FORMATS: Final = ("auto", "string", "openai")
"""Forms of a message's content for templates: as found in the template, a text, or parts."""
MAX_TEMPLATE_BYTES: Final = 16 << 20
"""Size limit of the file of `--chat-template`."""
SHIPPED: Final = Path(__file__).parent / "templates"
"""Templates of model families without tool support in their own templates."""
DEFAULT = "default"
"""Name of the default template."""
_BYTE_ORDER_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"
MAX_NAMES: Final = 20
"""Names of templates in an error."""
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_MAX_COMPILED = 16
"""Maximum number of cached request templates, in addition to the model's own."""


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """A template, ready to render."""

    template: jinja2.Template
    reads_parts: bool
    """True: it loops over the parts of a message's content (`auto`)."""
    marks: TemplateMarks


class JinjaRenderer:
    """Renders the model's template or a given one; compiles at engine start."""

    def __init__(self, tokenizer: Tokenizer, source: ModelSource, config: EngineConfig) -> None:
        self._environment = chat_environment()
        self._names: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        """Arguments and texts that a compiled template names."""
        self._compiled: dict[str, CompiledTemplate] = {}
        self._format = config.options.get("chat_template_content_format", "auto")
        if self._format not in CONTENT_FORMATS:
            raise ConfigError(
                f"--chat-template-content-format {self._format!r} does not exist; use auto, string "
                "or openai."
            )
        self._defaults = dict(config.options.get("default_chat_template_kwargs") or {})
        for name in _RESERVED:
            if name in self._defaults:
                raise ConfigError(
                    f"--default-chat-template-kwargs.{name}: got a field of requests; expected an "
                    "argument of the chat template. Remove it."
                )
        self._special = _special_texts(tokenizer)
        self._keeps_special = bool(config.options.get("allow_special_tokens_in_text"))
        self._control = ControlTexts({} if self._keeps_special else _control_texts(tokenizer))
        self._templates = _templates(tokenizer.chat_template, config.model.chat_template)
        if not self._templates and config.model.runner != "pooling":
            log.info(
                "%s has no chat template: chats are refused. Give --chat-template FILE to serve "
                "them",
                source.name,
            )
        for template in self._templates.values():
            try:
                self._compile(template)
            except jinja2.TemplateError as error:
                where = (
                    "--chat-template"
                    if config.model.chat_template
                    else f"the chat template of {source.name}"
                )
                raise ConfigError(
                    f"{where} cannot be compiled: {_words(error)}. Give another --chat-template."
                ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        chat_template_content_format: str = "auto",
    ) -> str:
        """Return the prompt, with the text of the last message and of all system messages.

        The format is one of `CONTENT_FORMATS`; `auto`: that of the flag.

        Raises `InvalidRequest` naming the message or field that cannot be rendered.
        """
        text = chat_template or self._choose("tool_use" if tools else DEFAULT)
        compiled = self._compile_for_request(text)
        marks = compiled.marks
        values = self._variables(value_without_lone_surrogates(template_kwargs or {}), marks)
        if values["documents"] and "documents" not in text:
            raise InvalidRequest(
                "documents", "are not read by the chat template; put them into the messages."
            )
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message",
                "excludes add_generation_prompt; unset one of them.",
            )
        clean_tools = value_without_lone_surrogates(tools)
        prompt_fields = {
            "tools": [dict(tool) for tool in clean_tools] if clean_tools else None,
            "add_generation_prompt": add_generation_prompt,
            **values,
        }

        def generate(chat: list[dict[str, Any]]) -> str:
            final = ""
            if continue_final_message:
                chat, final = _mark_final(chat)
            prompt = _render(compiled.template, {"messages": chat, **prompt_fields})
            return _cut_final(prompt, final) if continue_final_message else prompt

        has_developer = "developer" in text
        forms = self._forms(chat_template_content_format, compiled, has_parts=has_media(messages))
        clean = value_without_lone_surrogates(messages)

        def chats() -> Iterator[list[dict[str, Any]]]:
            for form in forms:
                chat = plain_messages(clean, keep_parts=form, has_developer=has_developer)
                marks.mark_answers(chat)
                yield chat

        self._environment.budget.begin()
        prompt = _first_complete(_versions(chats()), generate, marks)
        return prompt if self._keeps_special else marks.read(prompt)

    def template_names(
        self, *, chat_template: str | None = None, has_tools: bool = False
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Return the arguments that a template reads, and the texts that it compares."""
        text = chat_template or self._choose("tool_use" if has_tools else DEFAULT)
        if text not in self._names:
            self._compile_for_request(text)  # bounds the number of templates
            self._names = {
                known: names for known, names in self._names.items() if known in self._compiled
            }
            tree = self._environment.parse(text.removeprefix(_BYTE_ORDER_MARK))
            constants = (node.value for node in tree.find_all(nodes.Const))
            texts = frozenset(value for value in constants if isinstance(value, str))
            self._names[text] = frozenset(meta.find_undeclared_variables(tree)), texts
        return self._names[text]

    def _forms(
        self, content_format: str, compiled: CompiledTemplate, *, has_parts: bool
    ) -> list[bool]:
        """Return whether contents are lists of parts: the first form, and the one to try next."""
        field = "chat_template_content_format"
        if content_format not in CONTENT_FORMATS:
            raise InvalidRequest(
                field,
                f"got {content_format!r:.80}; expected one of {', '.join(CONTENT_FORMATS)}. "
                "Remove it.",
            )
        chosen = self._format if content_format == "auto" else content_format
        if has_parts and chosen == "string":
            raise InvalidRequest(
                field, "got string for messages with images; expected auto or openai. Change it."
            )
        if has_parts or chosen == "openai":
            return [True]
        if chosen == "string":
            return [False]
        return [compiled.reads_parts, not compiled.reads_parts]

    def _variables(
        self, template_kwargs: Mapping[str, Any], marks: TemplateMarks
    ) -> dict[str, Any]:
        """Return the template variables. Raises `InvalidRequest` for the name of a field."""
        for name in _RESERVED:
            if name in template_kwargs:
                raise InvalidRequest(
                    "chat_template_kwargs",
                    f"{name!r} is a field of the request, not of the template.",
                )
        special = {
            name: marks.mark(text) if isinstance(text, str) else text
            for name, text in self._special.items()
        }
        return {"documents": None, **special, **self._defaults, **template_kwargs}

    def _choose(self, name: str) -> str:
        """Return one of the model's templates."""
        text = self._templates.get(name) or self._templates.get(DEFAULT)
        if text is None:
            names = ", ".join(f"{name:.40}" for name in islice(self._templates, MAX_NAMES))
            others = f" that is the default; --chat-template takes one of: {names}"
            lack = others if self._templates else "; start with --chat-template FILE"
            raise InvalidRequest("messages", f"the model has no chat template{lack}.")
        return text

    def _compile_for_request(self, text: str) -> CompiledTemplate:
        """Return the same as `_compile`. Raises `InvalidRequest` for an invalid template."""
        try:
            return self._compile(text)
        except jinja2.TemplateError as error:
            raise InvalidRequest(
                "chat_template", f"cannot be compiled: {_words(error)}."
            ) from error

    def _compile(self, text: str) -> CompiledTemplate:
        known = self._compiled.get(text)
        if known is None:
            try:
                known = self._read(text)
            except (RecursionError, SyntaxError, MemoryError, ValueError, OverflowError) as error:
                raise jinja2.TemplateError(f"it is too deep or too large ({error})") from error
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.pop(
                    next(name for name in self._compiled if name not in self._templates.values()),
                    None,
                )
            self._compiled[text] = known
        return known

    def _read(self, text: str) -> CompiledTemplate:
        """Return a template, parsed and compiled."""
        source = text.removeprefix(_BYTE_ORDER_MARK)
        reads_parts = _reads_parts(self._environment, source)
        tree = self._environment.parse(source)
        optimize(tree, self._environment)  # joins the parts of constant texts
        marks = TemplateMarks(self._control, tree)
        return CompiledTemplate(self._environment.from_string(tree), reads_parts, marks)


def _render(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """Return the text of a template.

    A template with macros is in a reference cycle with its context, which would hold the messages
    until the garbage collector finds it.
    """
    context = template.new_context(dict(variables))
    try:
        return joined(template.root_render_func(context))
    except Exception:  # noqa: BLE001 - raised again, with the template's lines
        template.environment.handle_exception()
    finally:
        context.parent.clear()
        context.vars.clear()


def _templates(known: str | Mapping[str, str] | None, given: str | None) -> dict[str, str]:
    """Return templates by name. `given` (`--chat-template`) is a name, a file or the template text.

    Shipped templates have vLLM's names and are also found by vLLM's file names.
    """
    named = {DEFAULT: known} if isinstance(known, str) else dict(known or {})
    if given is None:
        return named
    if given in named:
        return {DEFAULT: named[given]}
    if "{" in given or "\n" in given:
        return {DEFAULT: given}
    path = Path(given)
    shipped = {file.stem: file for file in SHIPPED.glob("*.jinja")}
    file = shipped.get(given, path)
    if not os.path.exists(file):  # Path.exists raises where a name is too long for one
        file = shipped.get(
            path.name.removesuffix(".jinja").removeprefix("tool_chat_template_"), path
        )
    names = f"The model has: {', '.join(named)}. " if len(named) > 1 else ""
    advice = f"Name another file. {names}By name there are: {', '.join(sorted(shipped))}."
    return {DEFAULT: read_option_text("--chat-template", file, MAX_TEMPLATE_BYTES, advice)}


def _special_texts(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the template variables of special tokens, such as bos_token."""
    texts = dict(getattr(tokenizer, "special_tokens_map", None) or {})
    if "eos_token" not in texts and tokenizer.eos_token_id is not None:
        texts["eos_token"] = tokenizer.token_text(tokenizer.eos_token_id)
    return texts


def _control_texts(tokenizer: Tokenizer) -> Mapping[str, bool]:
    found: Mapping[str, bool] | None = getattr(tokenizer, "control_texts", None)
    if found is not None:
        return found
    texts = (tokenizer.token_text(token) for token in sorted(tokenizer.special_ids))
    return {text: True for text in texts if text}


def _reads_parts(environment: jinja2.Environment, text: str) -> bool:
    """Return whether the template loops over the parts of a message's content."""
    tree = environment.parse(text)
    names = {"content"}
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, names):
            names.add(assign.target.name)
    return any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node, names: set[str]) -> bool:
    if isinstance(node, nodes.Filter) and node.node is not None:
        return _is_content(node.node, names)
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Name) and node.name in names


def _versions(chats: Iterable[list[dict[str, Any]]]) -> Iterator[list[dict[str, Any]]]:
    """Yield each form of a conversation, then each alternative of every form."""
    forms = []
    for chat in chats:
        forms.append(alternatives(chat))
        yield next(forms[-1])
    for others in zip(*forms, strict=True):
        yield from others


def _first_complete(
    versions: Iterable[list[dict[str, Any]]],
    generate: Callable[[list[dict[str, Any]]], str],
    marks: TemplateMarks,
) -> str:
    """Return the first prompt that loses no text, of the same conversation in several versions.

    Raises the refusal of the first version, if there is no such prompt.
    """
    refusal: InvalidRequest | None = None
    for chat in versions:
        try:
            prompt = generate(chat)
            lost = lost_message(prompt, chat, generate)
        except InvalidRequest as error:
            refusal = refusal or error
            continue
        except Exception as error:
            # A template is untrusted code on client data, so any exception is an invalid
            # request.
            words = f"the chat template refused them: {_words(error)}."
            refusal = refusal or InvalidRequest("messages", marks.unmark(words))
            if isinstance(error, SecurityError):  # its budget is used up
                raise refusal from error
            continue
        if lost is None:
            return prompt
        role = chat[lost]["role"]
        refusal = refusal or InvalidRequest(
            f"messages[{lost}].content",
            f"got a text of role {role!r} that the chat template does not show; expected a "
            "role of the template. Give another role, or start with another --chat-template.",
        )
    raise refusal or InvalidRequest("messages", "are empty; at least one message is needed.")


def _mark_final(chat: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return the messages with a tag after the last text, where the prompt is cut; and the text."""
    *before, last = chat
    content = last["content"]
    if isinstance(content, str):
        return [*before, {**last, "content": content + _TAG}], content
    if not content:
        raise InvalidRequest("continue_final_message", "the last message has no text to continue.")
    *parts, part = content
    if "text" not in part:
        raise InvalidRequest("continue_final_message", "the last message has no text to continue.")
    text: str = part["text"]
    return [*before, {**last, "content": [*parts, {**part, "text": text + _TAG}]}], text


def _cut_final(prompt: str, final: str) -> str:
    at = prompt.rfind(_TAG.strip())
    if at < 0 or final.strip() not in prompt:
        raise InvalidRequest(
            "continue_final_message",
            "the chat template does not render the last message's text, so it cannot be continued.",
        )
    text_before = prompt[:at]
    return text_before if prompt.startswith(_TAG, at) else text_before.rstrip()


def _words(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    text = str(error).rstrip(".") or type(error).__name__
    return text if line is None else f"{text} (line {line})"
