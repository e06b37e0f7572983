"""Hook reference page, from hook specifications and contracts.

`python -m scripts.reference.hooks` prints it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

from core.config.fields import Option
from core.plugin import hookspecs
from core.plugin.entry import API_VERSION, Entry
from core.plugin.kinds import KINDS, USES, Kind
from core.testing.conformance import contract_of
from scripts.reference.attributes import attributes_of

INTRO = f"""\
# Hook reference

A plugin module implements some of these functions, each decorated with `@hookimpl` from
`core.api`. Hooks named after a kind return its entries and run once per process, when plugins are
loaded. Lifecycle hooks run at the times that their names state. No hook runs during a step. An
implementation may omit arguments. The plugin API has version {API_VERSION}.
"""


def hooks_page() -> str:
    """Return the page as markdown."""
    kinds = [line for kind in KINDS.values() for line in _kind(kind)]
    known = {kind.hook for kind in KINDS.values()}
    lifecycle = [
        line
        for name, hook in vars(hookspecs).items()
        if _is_hook(name) and name not in known
        for line in _hook(name, hook)
    ]
    data = [line for item in (Entry, Option) for line in _data(item)]
    parts = [
        INTRO,
        "## Entries and options\n",
        *data,
        "## Kinds\n",
        *kinds,
        "## Lifecycle\n",
        *lifecycle,
    ]
    return "\n".join(parts).rstrip() + "\n"


def _is_hook(name: str) -> bool:
    return name.startswith("engine_")


def _kind(kind: Kind) -> Iterator[str]:
    yield from _hook(kind.hook, getattr(hookspecs, kind.hook))
    yield f"Used: {USES[kind.use]}.\n"
    contract = contract_of(kind.name)
    if not isinstance(contract, type):
        return
    yield f"**`{contract.__name__}`** {_doc(contract)}\n"
    members = list(_attributes(contract))
    for name, method in vars(contract).items():
        if inspect.isfunction(method) and (not name.startswith("_") or name == "__call__"):
            members.append(f"- `{name}{_signature(method)}` {_doc(method)}".rstrip())
    yield "\n".join(members) + "\n"


def _hook(name: str, hook: Any) -> Iterator[str]:
    yield f"### `{name}{_signature(hook)}`\n"
    yield inspect.getdoc(hook) or ""
    yield ""


def _data(item: type) -> Iterator[str]:
    yield f"### `{item.__name__}`\n"
    yield f"{_doc(item)}\n"
    yield "\n".join(_attributes(item)) + "\n"


def _attributes(item: type) -> Iterator[str]:
    """Yield one line per attribute: declaration and description."""
    for attribute in attributes_of(item):
        yield f"- `{attribute.declared}` {attribute.text}".rstrip()


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.name != "self"]
    return str(signature.replace(parameters=own)).replace("'", "")


def _doc(item: Any) -> str:
    """Return a docstring as one line of markdown."""
    return " ".join((inspect.getdoc(item) or "").split())


if __name__ == "__main__":
    sys.stdout.write(hooks_page())
