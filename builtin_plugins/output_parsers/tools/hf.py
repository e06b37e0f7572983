"""Calls as the checkpoint's own response template describes them.

Format: the page "Response Parsing" of the transformers documentation, and the templates in its
tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, NoReturn

from builtin_plugins.output_parsers.tools.literals import gemma_arguments
from builtin_plugins.output_parsers.tools.pythonic import quoted_brackets
from core.api import (
    Broken,
    CallKeys,
    ConfigError,
    Delimiter,
    ParseRequest,
    Reading,
    Scan,
    TemplateField,
    ToolFormat,
    read_pattern,
    read_response_template,
    typed_arguments,
)

WHERE: Final = "response_template.fields.tool_calls"
PLACEHOLDER: Final = re.compile(r"\{(\w+(?:\.\w+)*)\}")

Body = Callable[[Scan, ParseRequest, Mapping[str, str]], Reading]
"""Reads what stands between the delimiters of calls, given what those have named."""


def described(template: Mapping[str, Any] | None) -> ToolFormat:
    """Return the format that a checkpoint's template describes.

    Raises `ConfigError` for what is not read here.
    """
    found = read_response_template(template)
    field = found.tool_calls
    if field is None:
        raise ConfigError(
            f"{WHERE} is missing: name the model family's own --tool-call-parser instead of hf."
        )
    body, more = body_of(field)
    transform = field.stated.get("transform")
    if transform is None and field.stated.get("transform_each"):
        refuse("transform_each", "needs a `transform`")
    check_transform(
        transform,
        {"content", *(step.name for begin in field.opens for step in begin.steps)},
        field.stated,
    )
    dropped = tuple(
        text for text in (*found.around_content, *found.dropped) if text not in field.texts
    )
    ends = (*field.closes, *field.behind)
    return ToolFormat(
        partial(read, field, body, dropped), markers=(*found.markers, *more), call_ends=ends
    )


def read(
    field: TemplateField, body: Body, dropped: tuple[str, ...], scan: Scan, request: ParseRequest
) -> Reading:
    """Read calls, and leave out what is around the answer."""
    opens = {delimiter.text: delimiter for delimiter in field.opens}
    while start := (yield from scan.text(*opens, *dropped, begins=tuple(opens))):
        if start in dropped:
            scan.drop()
            continue
        with scan.attempt():
            named = yield from opens[start].rest(scan)
            value = yield from body(scan, request, named)
            for text in field.behind:
                yield from scan.maybe(text)
            for call in calls_in(field.stated, named, value):
                note(scan, call)


def note(scan: Scan, call: Any) -> None:
    """Note a call of a message. Raises `Broken` for what is none."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or "arguments" not in function:
        raise Broken
    call_id = call.get("id")
    scan.call(
        function.get("name"), function["arguments"], call_id if isinstance(call_id, str) else None
    )


def calls_in(stated: Mapping[str, Any], named: Mapping[str, str], value: Any) -> list[Any]:
    """Return the calls that a value is, in the form of a message's."""
    transform = stated.get("transform")
    if stated.get("transform_each"):
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise Broken
        return [filled(transform, {**named, **item}) for item in value]
    found = value if transform is None else filled(transform, {**named, "content": value})
    return found if isinstance(found, list) else [found]


def filled(transform: Any, scope: Mapping[str, Any]) -> Any:
    """Return a form with the values its placeholders name. Raises `Broken` where one is missing."""
    if isinstance(transform, Mapping):
        return {key: filled(inner, scope) for key, inner in transform.items()}
    if isinstance(transform, list):
        return [filled(inner, scope) for inner in transform]
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
    """Raise `ConfigError` for texts that have a placeholder and something else, or one of a name
    that is not known.
    """
    if isinstance(transform, str) and PLACEHOLDER.search(transform):
        found = PLACEHOLDER.fullmatch(transform)
        if found is None:
            refuse("transform", f"has {transform!r}, where a placeholder must be all of a text")
        if not stated.get("transform_each") and found[1].split(".")[0] not in names:
            refuse("transform", f"has {transform!r}, which nothing in front of a call is named")
    inner = (
        transform.values()
        if isinstance(transform, Mapping)
        else transform
        if isinstance(transform, list)
        else ()
    )
    for value in inner:
        check_transform(value, names, stated)


def body_of(field: TemplateField) -> tuple[Body, tuple[str, ...]]:
    """Return what reads the content of calls, and which special tokens may stand in it."""
    kind = field.stated.get("content", "text")
    args = field.stated.get("content_args", {})
    if not isinstance(args, Mapping):
        refuse("content_args", "must be an object")
    if kind == "json":
        read_object = object_of(field.stated.get("transform"))
        known(args, "unquoted_keys", "string_delims", "allow_non_json")
        quotes = args.get("string_delims") or []
        if not quotes and not args.get("unquoted_keys"):
            return partial(json_body, field, read_object), ()
        match quotes:
            case [[str(begin), str(end)]] if begin and begin == end:
                return partial(literal_body, field, begin), (begin,)
        refuse(
            "content_args.string_delims",
            "must be a list of one: the text that begins strings and ends them, twice",
        )
    if kind != "xml-inline":
        refuse("content", f"is {kind!r}; calls are read from 'json' and 'xml-inline'")
    known(args, "tag_pattern", "value_parser")
    tag = read_pattern(f"{WHERE}.content_args.tag_pattern", args.get("tag_pattern"))
    if {step.name for step in tag.steps} - {""} != {"key", "value"}:
        refuse("content_args.tag_pattern", "must name `key` and `value`")
    parser = args.get("value_parser") or {"name": "text"}
    name = parser.get("name") if isinstance(parser, Mapping) else parser
    if name not in ("text", "json"):
        refuse("content_args.value_parser", f"must be named 'json' or 'text', not {name!r}")
    return partial(tagged_body, field, tag, name == "json"), ()


def object_of(transform: Any) -> Callable[[Scan, Mapping[str, str]], Reading]:
    """Return what reads the JSON of calls, and tells of a call what can be told, where a plain
    transform says what it is.
    """
    function = (
        transform.get("function")
        if isinstance(transform, Mapping) and "id" not in transform
        else None
    )
    if function == "{content}":
        return lambda scan, named: scan.json(keys=CallKeys(arguments=("arguments",)))
    if not isinstance(function, Mapping):
        return lambda scan, named: scan.json()
    name, arguments = (
        found[1]
        if isinstance(value, str)
        and (found := PLACEHOLDER.fullmatch(value))
        and "." not in found[1]
        else ""
        for value in (function.get("name"), function.get("arguments"))
    )
    keys = CallKeys(names=(name,), arguments=(arguments,))

    def read_either(scan: Scan, named: Mapping[str, str]) -> Reading:
        if arguments == "content" and named.get(name) and (yield from scan.maybe("{")):
            return (yield from scan.arguments(scan.begin(named[name]), "{"))
        return (
            yield from scan.json(keys=None if arguments == "content" or name in named else keys)
        )

    return read_either


def json_body(
    field: TemplateField,
    read_object: Callable[[Scan, Mapping[str, str]], Reading],
    scan: Scan,
    request: ParseRequest,
    named: Mapping[str, str],
) -> Reading:
    """Return the JSON that follows, read up to and over what ends it."""
    value = yield from read_object(scan, named)
    if field.closes:
        yield from scan.close_call(*field.closes)
    return value


def literal_body(
    field: TemplateField, quote: str, scan: Scan, request: ParseRequest, named: Mapping[str, str]
) -> Reading:
    """Return the object that follows, its keys bare and its texts between quotes of their own."""
    text = yield from quoted_brackets(scan, quote)
    if field.closes:
        yield from scan.close_call(*field.closes)
    return gemma_arguments(text, quote)


def tagged_body(
    field: TemplateField,
    tag: Delimiter,
    literal: bool,
    scan: Scan,
    request: ParseRequest,
    named: Mapping[str, str],
) -> Reading:
    """Return the object whose values stand between tags; `literal`: what reads as JSON is that."""
    texts: dict[str, str] = {}
    while (yield from scan.maybe(tag.text)):
        found = yield from tag.rest(scan)
        texts[found["key"]] = found["value"]
    whole = bool(texts) and scan.ended
    if not whole and not (
        yield from scan.maybe(*field.closes)
    ):  # more tags, of which the template says nothing
        _, end = yield from scan.take(*field.closes, *field.texts)
        if end not in field.closes:
            scan.unread(end)
    return typed_arguments(texts, request.parameters(named.get("name", "")), literal=literal)


def known(args: Mapping[str, Any], *names: str) -> None:
    """Raise `ConfigError` for other arguments of a content than these."""
    for name in args:
        if name not in names:
            refuse(f"content_args.{name}", "is not read here")


def refuse(key: str, what: str) -> NoReturn:
    """Say what of the template is not read here."""
    raise ConfigError(
        f"{WHERE}.{key} {what}. Name the model family's own --tool-call-parser instead of hf."
    )


def read_none(scan: Scan, request: ParseRequest) -> Reading:
    """Leave everything content: without a model there is no format."""
    yield from ()


HF: Final = ToolFormat(read_none, described=described)
