"""Chat templates and tokenizer_config.json: endless loops, huge values, escapes and wrong types."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.system.hostile_files.hostile_file import HostileFile, Write, fields, text

FILE: Final = "tokenizer_config.json"
JINJA: Final = "chat_template.jinja"
KIND: Final = "chat template, tokenizer config"
REFUSED: Final = "chat template|prompt|messages"
change = partial(fields, FILE)


def template(source: str) -> Write:
    """Return a writer of the model's template."""
    return text(JINJA, source)


def nested(depth: int) -> Write:
    """Return a writer of loops in loops, each of 1,000 rounds."""
    start = "".join(f"{{% for i{n} in range(1000) %}}" for n in range(depth))
    return template(start + "x" + "{% endfor %}" * depth)


def others(content: str) -> Write:
    """Return a writer of a template in the folder of additional ones."""

    def write(folder: Path) -> None:
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(content)
        (folder / JINJA).write_text("{{ messages[0].content }}")

    return write


def fifo(folder: Path) -> None:
    """Put a FIFO among the additional templates."""
    (folder / "additional_chat_templates").mkdir()
    os.mkfifo(folder / "additional_chat_templates" / "tool_use.jinja")
    (folder / JINJA).write_text("{{ messages[0].content }}")


def _lists(depth: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    return nested


CONTENT: Final = "{{ messages[0].content }}"
SANDBOX: Final[dict[str, str]] = {
    "attributes of classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "attributes by filter": "{{ ''|attr('__class__')|attr('__mro__') }}",
    "attributes by format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "attributes by format_map": "{{ '{a.__class__}'.format_map({'a': messages}) }}",
    "globals of a function": "{{ raise_exception.__globals__ }}",
    "globals of a namespace": "{{ namespace.__init__.__globals__ }}",
    "globals of a cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "globals of a joiner": "{{ joiner.__init__.__globals__ }}",
    "context of the template": "{{ self.__init__.__globals__ }}",
    "internals of a macro": "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}",
    "internals of a caller": "{{ messages.append.__self__.__class__.__base__ }}",
    "change of the messages": "{{ messages.append(1) }}" + CONTENT,
    "change of a message": "{% set _ = messages[0].update({'content': 'x'}) %}" + CONTENT,
    "underscore in a namespace": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}" + CONTENT,
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "extends": "{% extends '/etc/passwd' %}",
    "from import": "{% from 'builtins' import eval %}{{ eval('1') }}",
}
LARGE: Final[dict[str, str]] = {
    "range of 10^9": "{% for i in range(10**9) %}x{% endfor %}",
    "list of range": "{{ range(10**9)|list }}",
    "range of 99,999 four deep": "{% for a in range(99999) %}{% for b in range(99999) %}x"
    "{% endfor %}{% endfor %}",
    "text times 10^9": "{{ 'x' * 10**9 }}",
    "number times text": "{{ 10**9 * 'x' }}",
    "list times 10^9": "{{ [0] * 10**9 }}",
    "power of powers": "{{ 9**9**9**9 }}",
    "power by filter": "{{ 2|float ** 9999 }}",
    "shift by multiplication": "{% set ns = namespace(x=2) %}{% for i in range(99999) %}"
    "{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "doubling text": "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(64) %}"
    "{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x|length }}",
    "doubling text by plus": "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(64) %}"
    "{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|length }}",
    "doubling list": "{% set ns = namespace(x=[1]) %}{% for i in range(64) %}"
    "{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|length }}",
    "doubling by format": "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(64) %}"
    "{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}{{ ns.x|length }}",
    "doubling by join": "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(64) %}"
    "{% set ns.x = [ns.x, ns.x]|join %}{% endfor %}{{ ns.x|length }}",
    "doubling by replace": "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(64) %}"
    "{% set ns.x = ns.x|replace('x', 'xx') %}{% endfor %}{{ ns.x|length }}",
    "doubling by a block": "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(64) %}"
    "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}{% endfor %}{{ ns.x|length }}",
    "format with a width of 10^9": "{{ '%1000000000d' % 1 }}",
    "format with a star": "{{ '%*d' % (10**9, 1) }}",
    "format method with a width": "{{ '{:>1000000000}'.format('x') }}",
    "format filter with a width": "{{ '%1000000000s'|format('x') }}",
    "center of 10^9": "{{ 'x'|center(10**9) }}",
    "center method of 10^9": "{{ 'x'.center(10**9) }}",
    "ljust of 10^9": "{{ 'x'.ljust(10**9) }}",
    "zfill of 10^9": "{{ 'x'.zfill(10**9) }}",
    "expandtabs of 10^9": "{{ ('\\t').expandtabs(10**9) }}",
    "indent of 10^9": "{{ 'x\\ny'|indent(10**9) }}",
    "tojson indent of 10^9": "{{ [1]|tojson(indent=10**9) }}",
    "lipsum of 10^9": "{{ lipsum(10**9) }}",
    "batch filled to 10^9": "{{ [1]|batch(10**9, 0)|list }}",
    "slice into 10^9": "{{ [1]|slice(10**9)|list }}",
    "wordwrap of nothing": "{{ ('x ' * 1000)|wordwrap(0) }}",
    "replace with a megabyte": "{{ ('x' * 10**6)|replace('x', 'y' * 10**6) }}",
    "join with a megabyte": "{{ range(99999)|join('y' * 10**6) }}",
    "join method with a megabyte": "{{ ('y' * 10**6).join(['a'] * 10**6) }}",
    "translate": "{{ ('x' * 10**7).translate({120: 'y' * 10**6}) }}",
    "recursive macro": "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "macros that call each other": "{% macro a() %}{{ b() }}{% endmacro %}"
    "{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
    "recursive loop": "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}",
    "macro of two calls": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}"
    "{% endmacro %}{{ m(60) }}",
    "huge integer as text": "{{ (10**4000) * 1 }}",
    "urlize": "{{ ('http://a.b ' * 10**6)|urlize }}",
    "striptags": "{{ ('<' * 10**6)|striptags }}",
    "date format of a megabyte": "{{ strftime_now('%Y' * 10**6) }}",
    "sum of lists": "{{ ([[0]] * 99999)|sum(start=[]) }}",
    "dict of keywords": "{{ dict(range(9)|batch(2)) }}" * 10,
    "pprint": "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}"
    "{% endfor %}{{ ns.x|pprint }}",
    "tojson of nested lists": "{% set ns = namespace(x=[]) %}{% for i in range(50000) %}"
    "{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson }}",
    "comparison of nested lists": "{% set a = namespace(x=[]) %}{% set b = namespace(x=[]) %}"
    "{% for i in range(50000) %}{% set a.x = [a.x] %}{% set b.x = [b.x] %}{% endfor %}"
    "{{ a.x == b.x }}",
    "split into characters": "{% for i in range(9999) %}{% set x = ('x ' * 99999).split() %}"
    "{% endfor %}",
}
SYNTAX: Final[dict[str, tuple[str, str | None]]] = {
    "brackets nested 10,000 deep": ("{{ " + "(" * 10_000 + "1" + ")" * 10_000 + " }}", "compiled"),
    "lists nested 500 deep": ("{{ " + "[" * 500 + "]" * 500 + " }}" + CONTENT, "compiled"),
    "conditions nested 150 deep": (
        "{% if 1 %}" * 150 + CONTENT + "{% endif %}" * 150,
        "compiled|messages",
    ),
    "not a thousand times": ("{{ " + "not " * 1000 + "1 }}" + CONTENT, "compiled"),
    "additions of 10,000": ("{{ " + "1 + " * 10_000 + "1 }}" + CONTENT, "compiled"),
    "constant of 10^9 characters": ("{{ 'x' * 1000000000 }}", REFUSED),
    "constant power": ("{{ 9 ** 9 ** 9 }}", REFUSED),
    "number of 10,000 digits": ("{{ " + "9" * 10_000 + " }}", "compiled|messages"),
    "unfinished": ("{% for", "compiled"),
    "unknown filter": ("{{ 1|nope }}", "compiled"),
    "without the messages": ("hello", "messages"),
    "empty": ("", "messages|no chat template"),
    "64 KiB of text": ("x y " * (16 << 10) + CONTENT, "prompt|context"),
}
CONFIGS: Final[dict[str, tuple[Write, str | None]]] = {
    "template of a list": (change(chat_template=[1, 2, {"name": 3}]), "no chat template"),
    "template of a number": (change(chat_template=7), "no chat template"),
    "template of 10,000 names": (
        change(chat_template=[{"name": str(n), "template": CONTENT} for n in range(10_000)]),
        "no chat template",
    ),
    "beginning token a list": (change(bos_token=["a"]), None),
    "beginning token of a megabyte": (change(bos_token="b" * (1 << 20)), None),
    "end token unknown": (change(eos_token="<nope>"), None),
    "add_bos_token a text": (change(add_bos_token="yes", bos_token="<|im_start|>"), None),
    "tokenizer class of code": (change(tokenizer_class="os.system", auto_map={"a": "b"}), None),
    "longest text infinite": (change(model_max_length=float("inf")), None),
    "longest text negative": (change(model_max_length=-1), None),
    "added tokens of wrong types": (change(added_tokens_decoder={"x": 1, "-5": []}), None),
    "response template nested": (change(response_template={"a": [{"b": None}] * 9}), None),
    "nested 80 deep": (change(extra=_lists(80)), "64 nested values"),
    "a list": (text(FILE, "[]"), "no JSON object"),
    "20 MB": (change(extra="x" * (20 << 20)), "more than 16777216 bytes"),
    "template file of 20 MB": (template("x" * (20 << 20)), "more than 16777216 bytes"),
    "template in invalid UTF-8": (
        lambda folder: _write_bytes(folder / JINJA, b"\xff\xfe{{"),
        "cannot be read",
    ),
    "additional template with a fault": (others("{% for"), "compiled"),
    "additional template in a FIFO": (fifo, "expected a regular file"),
    "special tokens map of a list": (text("special_tokens_map.json", "[]"), "no JSON object"),
    "six loops of 1,000": (nested(6), REFUSED),
    "loops nested 25 deep": (nested(25), REFUSED + "|compiled"),
}


def _write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _cases() -> dict[str, tuple[Write, str | None]]:
    cases: dict[str, tuple[Write, str | None]] = {}
    for name, source in {**SANDBOX, **LARGE}.items():
        cases[name] = template(source), REFUSED
    for name, (source, refusal) in SYNTAX.items():
        cases[f"syntax: {name}"] = template(source), refusal
    return {**cases, **CONFIGS}


WRITERS: Final[dict[str, Any]] = _cases()
CORPUS: Final = [
    HostileFile(KIND, name, write, refusal) for name, (write, refusal) in WRITERS.items()
]
