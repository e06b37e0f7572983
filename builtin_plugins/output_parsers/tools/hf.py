"""Calls as a checkpoint's own response template describes them.

Format: the page "Response Parsing" of the transformers documentation, and the templates in its
tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, NoReturn

from builtin_plugins.output_parsers.api import (
    Broken,
    CallKeys,
    Delimiter,
    OutputReader,
    Reading,
    TemplateField,
    read_pattern,
    read_response_template,
    typed_arguments,
)
from builtin_plugins.output_parsers.contract import ParseRequest, ToolFormat
from builtin_plugins.output_parsers.tools.literals import gemma_arguments
from builtin_plugins.output_parsers.tools.pythonic import quoted_brackets
from core.api import ConfigError

WHERE: Final = "response_template.fields.tool_calls"
INSTEAD: Final = "Use the model family's own --tool-call-parser instead of hf."
PLACEHOLDER: Final = re.compile(r"\{(\w+(?:\.\w+)*)\}")

Body = Callable[[OutputReader, ParseRequest, Mapping[str, str]], Reading]
"""Reads the text between the delimiters of a call, given their captured values."""


def format_from_template(template: Mapping[str, Any] | None) -> ToolFormat:
    """Return the format of a checkpoint's template. Raises `ConfigError` for unsupported parts."""
    found = read_response_template(template)
    field = found.tool_calls
    if field is None:
        raise ConfigError(f"{WHERE}: is missing. {INSTEAD}")
    body, more = make_body(field)
    transform = field.settings.get("transform")
    if transform is None and field.settings.get("transform_each"):
        refuse("transform_each", "expected a `transform` with it")
    check_transform(
        transform,
        {"content", *(step.name for begin in field.opens for step in begin.steps)},
        field.settings,
    )
    dropped = tuple(
        text for text in (*found.around_content, *found.dropped) if text not in field.start_texts
    )
    ends = (*field.end_texts, *field.later_end_texts)
    return ToolFormat(
        partial(read_calls, field, body, dropped),
        markers=(*found.markers, *more),
        call_ends=ends,
        begins=tuple(field.start_texts),
    )


def read_calls(
    field: TemplateField,
    body: Body,
    dropped: tuple[str, ...],
    reader: OutputReader,
    request: ParseRequest,
) -> Reading:
    """Read content and calls; drop the delimiters around the content."""
    opens = {delimiter.text: delimiter for delimiter in field.opens}
    while start := (yield from reader.content_until_call(*opens, *dropped, begins=tuple(opens))):
        if start in dropped:
            reader.drop()
            continue
        with reader.attempt():
            named = yield from opens[start].read_rest(reader)
            value = yield from body(reader, request, named)
            for text in field.later_end_texts:
                yield from reader.skip_optional(text)
            for call in message_calls(field.settings, named, value):
                add_message_call(reader, call)


def add_message_call(reader: OutputReader, call: Any) -> None:
    """Add a call in a message's form. Raises `Broken` for other values."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or "arguments" not in function:
        raise Broken
    call_id = call.get("id")
    reader.add_call(
        function.get("name"), function["arguments"], call_id if isinstance(call_id, str) else None
    )


def message_calls(stated: Mapping[str, Any], named: Mapping[str, str], value: Any) -> list[Any]:
    """Return the calls of a value, in a message's form."""
    transform = stated.get("transform")
    if stated.get("transform_each"):
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise Broken
        return [fill(transform, {**named, **item}) for item in value]
    found = value if transform is None else fill(transform, {**named, "content": value})
    return found if isinstance(found, list) else [found]


def fill(transform: Any, scope: Mapping[str, Any]) -> Any:
    """Return a transform with its placeholders filled. Raises `Broken` if a value is missing."""
    if isinstance(transform, Mapping):
        return {key: fill(inner, scope) for key, inner in transform.items()}
    if isinstance(transform, list):
        return [fill(inner, scope) for inner in transform]
    placeholder = PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if placeholder is None:
        return transform
    value: Any = scope
    for key in placeholder[1].split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise Broken
        value = value[key]
    return value


def check_transform(transform: Any, names: Collection[str], stated: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a partial placeholder or an unknown name."""
    if isinstance(transform, str) and PLACEHOLDER.search(transform):
        found = PLACEHOLDER.fullmatch(transform)
        if found is None:
            refuse("transform", f"got {transform!r}; expected a placeholder alone")
        if not stated.get("transform_each") and found[1].split(".")[0] not in names:
            refuse(
                "transform", f"got {transform!r}; expected a name that the open pattern captures"
            )
    inner: Collection[Any] = ()
    if isinstance(transform, Mapping):
        inner = transform.values()
    elif isinstance(transform, list):
        inner = transform
    for value in inner:
        check_transform(value, names, stated)


def make_body(field: TemplateField) -> tuple[Body, tuple[str, ...]]:
    """Return the reader of a call's content, and the special tokens that it may contain."""
    kind = field.settings.get("content", "text")
    args = field.settings.get("content_args", {})
    if not isinstance(args, Mapping):
        refuse("content_args", f"got {args!r:.100}; expected an object")
    if kind == "json":
        read_object = make_object_reader(field.settings.get("transform"))
        check_keys(args, "unquoted_keys", "string_delims", "allow_non_json")
        quotes = args.get("string_delims") or []
        if not quotes and not args.get("unquoted_keys"):
            return partial(json_body, field, read_object), ()
        match quotes:
            case [[str(begin), str(end)]] if begin and begin == end:
                return partial(literal_body, field, begin), (begin,)
        refuse(
            "content_args.string_delims",
            f"got {quotes!r:.100}; expected a list of one pair of equal texts",
        )
    if kind != "xml-inline":
        refuse("content", f"got {kind!r}; expected 'json' or 'xml-inline'")
    check_keys(args, "tag_pattern", "value_parser")
    tag = read_pattern(f"{WHERE}.content_args.tag_pattern", args.get("tag_pattern"))
    if {step.name for step in tag.steps} - {""} != {"key", "value"}:
        refuse("content_args.tag_pattern", "expected the names `key` and `value`")
    parser = args.get("value_parser") or {"name": "text"}
    name = parser.get("name") if isinstance(parser, Mapping) else parser
    if name not in ("text", "json"):
        refuse("content_args.value_parser", f"got {name!r}; expected 'json' or 'text'")
    return partial(tagged_body, field, tag, name == "json"), ()


def make_object_reader(transform: Any) -> Callable[[OutputReader, Mapping[str, str]], Reading]:
    """Return the reader of calls' JSON, which streams them if a plain transform allows it."""
    function = None
    if isinstance(transform, Mapping) and "id" not in transform:
        function = transform.get("function")
    if function == "{content}":
        return lambda reader, named: reader.read_json(keys=CallKeys(arguments=("arguments",)))
    if not isinstance(function, Mapping):
        return lambda reader, named: reader.read_json()
    name = plain_placeholder(function.get("name"))
    arguments = plain_placeholder(function.get("arguments"))
    keys = CallKeys(names=(name,), arguments=(arguments,))

    def read_either(reader: OutputReader, named: Mapping[str, str]) -> Reading:
        if arguments == "content" and named.get(name) and (yield from reader.skip_optional("{")):
            return (yield from reader.read_arguments(reader.begin_call(named[name]), "{"))
        is_bare = arguments == "content" or name in named
        return (yield from reader.read_json(keys=None if is_bare else keys))

    return read_either


def plain_placeholder(value: Any) -> str:
    """Return the name of a value that is one placeholder without dots; "" otherwise."""
    found = PLACEHOLDER.fullmatch(value) if isinstance(value, str) else None
    return found[1] if found and "." not in found[1] else ""


def json_body(
    field: TemplateField,
    read_object: Callable[[OutputReader, Mapping[str, str]], Reading],
    reader: OutputReader,
    request: ParseRequest,
    named: Mapping[str, str],
) -> Reading:
    """Return the next JSON value, reading through the call's end."""
    value = yield from read_object(reader, named)
    if field.end_texts:
        yield from reader.close_call(*field.end_texts)
    return value


def literal_body(
    field: TemplateField,
    quote: str,
    reader: OutputReader,
    request: ParseRequest,
    named: Mapping[str, str],
) -> Reading:
    """Return the next object with unquoted keys and custom string quotes."""
    text = yield from quoted_brackets(reader, quote)
    if field.end_texts:
        yield from reader.close_call(*field.end_texts)
    return gemma_arguments(text, quote)


def tagged_body(
    field: TemplateField,
    tag: Delimiter,
    literal: bool,
    reader: OutputReader,
    request: ParseRequest,
    named: Mapping[str, str],
) -> Reading:
    """Return the object with values between tags. `literal`: parse JSON-like values."""
    texts: dict[str, str] = {}
    while (yield from reader.skip_optional(tag.text)):
        found = yield from tag.read_rest(reader)
        texts[found["key"]] = found["value"]
    whole = bool(texts) and reader.ended
    if not whole and not (
        yield from reader.skip_optional(*field.end_texts)
    ):  # further tags that the template does not describe
        _, end = yield from reader.read_until(*field.end_texts, *field.start_texts)
        if end not in field.end_texts:
            reader.unread(end)
    return typed_arguments(texts, request.parameters(named.get("name", "")), literal=literal)


def check_keys(args: Mapping[str, Any], *names: str) -> None:
    """Raise `ConfigError` for arguments other than `names`."""
    for name in args:
        if name not in names:
            refuse(f"content_args.{name}", "is not supported")


def refuse(key: str, what: str) -> NoReturn:
    """Raise `ConfigError` for a part of the template."""
    raise ConfigError(f"{WHERE}.{key}: {what}. {INSTEAD}")


def read_none(reader: OutputReader, request: ParseRequest) -> Reading:
    """Leave everything content: without a template there is no format."""
    yield from ()


HF: Final = ToolFormat(read_none, from_template=format_from_template)
