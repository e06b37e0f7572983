"""The Jinja sandbox of chat templates, with the features of transformers' `apply_chat_template`.

Templates are untrusted: they read plain data only and cannot modify it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, cast

import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from builtin_plugins.chat_renderers.jinja.budget import Budget, check_product
from builtin_plugins.chat_renderers.jinja.value_limits import (
    MAX_DATE_CHARS,
    MAX_INDENT,
    UNSERVED_FILTERS,
    check_call,
    check_format,
    limited,
)

_NOT_ASCII: Final = re.compile("[^\x00-\x7f\ud800-\udfff]")
"""Characters that JSON escapes; surrogates are marks of control tokens."""


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}`, which marks assistant text and renders it
    unchanged.
    """

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Return a block that renders its body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _PlainDict:
    """`dict` for templates, without the type's attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class _PlainNamespace(Namespace):
    """`namespace()` that rejects underscore names."""

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a chat template may not set {name!r} on a namespace; rename it.")
        super().__setitem__(name, value)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox with a budget per rendering; one rendering per thread at a time."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Return the operator's result, unless it is too large."""
        if operator == "%":
            check_format(left, right)
        else:
            check_product(operator, left, right)
        return self.budget.spend(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the result of a call, unless it is too large."""
        method = getattr(__obj, "__wrapped__", __obj)
        text = getattr(method, "__self__", None)
        if isinstance(text, str):
            check_call(method.__name__, text, [*args, *kwargs.values()])
        return __self.budget.spend(super().call(__context, __obj, *args, **kwargs))

    def _generate(self, source: jinja2.nodes.Template, *args: Any, **kwargs: Any) -> str:
        self.budget.watch(source)
        return super()._generate(source, *args, **kwargs)

    @property
    def budget(self) -> Budget:
        """Budget of a rendering."""
        found: Any = self.extensions[Budget.identifier]
        return cast(Budget, found)


def chat_environment() -> ChatEnvironment:
    """Return a fresh environment with the filters and functions chat templates expect."""
    environment = ChatEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationTag, jinja2.ext.loopcontrols, Budget],
    )
    for name in UNSERVED_FILTERS:
        del environment.filters[name]
    del environment.globals["lipsum"]
    environment.filters["tojson"] = _to_json
    for name, function in environment.filters.items():
        environment.filters[name] = limited(name, function, environment.budget.spend)
    environment.concat = environment.budget.joined  # type: ignore[method-assign]
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _PlainDict()
    environment.globals["namespace"] = _PlainNamespace
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON; Jinja's own filter escapes HTML, which models are not trained on."""
    if isinstance(indent, int) and indent > MAX_INDENT:
        raise SecurityError(f"tojson with the indent {indent!r:.20} makes too large a text")
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text) if ensure_ascii else text


def _raise_exception(message: str) -> str:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    if len(pattern) > MAX_DATE_CHARS:
        raise SecurityError(f"a date format has more than {MAX_DATE_CHARS} characters")
    return datetime.now().strftime(pattern)
