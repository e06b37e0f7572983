"""A schema document: its subschemas, and what their references point to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

_MAPS: Final = (
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependencies",
)
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE: Final = (
    "not",
    "if",
    "then",
    "else",
    "items",
    "additionalItems",
    "contains",
    "additionalProperties",
    "propertyNames",
    "unevaluatedProperties",
    "unevaluatedItems",
)
_DRAFTS: Final = {
    "draft-03": 3,
    "draft-04": 4,
    "draft-05": 4,
    "draft-06": 6,
    "draft-07": 7,
    "draft/2019-09": 2019,
    "draft/2020-12": 2020,
    "": 2020,
}
"""Drafts by their part of the meta-schema's URI; draft 5 has the meta-schema of draft 4."""
_META_SCHEMA: Final = re.compile(
    r"https?://(?:www\.)?json-schema\.org/(?:(?P<draft>[^#]*)/)?(?:hyper-)?schema#?"
)
_ANNOTATING: Final = (
    (re.compile(r"https?://spec\.openapis\.org/oas/3\.1/dialect/.+"), 2020),
    (re.compile(r"https?://iglucentral\.com/schemas/.*/jsonschema/1-0-0#?"), 4),
)
"""Meta-schemas that only add annotations to a draft: of OpenAPI 3.1 and of Snowplow."""
LATEST: Final = 2020


class UnsupportedSchemaError(ValueError):
    """A schema cannot be held exactly; the message names the keyword and where it stands."""

    def __init__(self, keyword: str, why: str, path: str = "") -> None:
        where = f" at {path}" if path else ""
        super().__init__(f"{keyword}{where} {why}")
        self.keyword = keyword
        self.why = why
        self.path = path
        """JSON pointer of the schema that has the keyword; "" also if that is unknown."""


class TooManyAlternativesError(UnsupportedSchemaError):
    """A schema has too many combinations of alternatives."""


class CompileTimeError(Exception):
    """The compilation of a schema takes more CPU time than allowed."""


class UncheckedError(Exception):
    """A value cannot be checked: it takes too much work, or the schema cannot be evaluated."""


class Document:
    """Resolves references within one schema; never reads another document."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.draft = LATEST if not isinstance(root, Mapping) else _draft_of(root, "")
        """The draft of the schema: its number or year."""
        self._paths: dict[int, str] = {}
        self._bases: dict[int, str] = {}
        self._resources: dict[str, Any] = {"": root}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._dynamic: set[tuple[str, str]] = set()
        self._added: list[Any] = []
        self._scan(root, "", "")

    def path(self, schema: Any) -> str:
        """Return the JSON pointer of a subschema."""
        return self._paths.get(id(schema), "")

    def content(self, schema: Any) -> tuple[str, str]:
        """Return what is equal for subschemas that mean the same: base URI and text."""
        return self._bases.get(id(schema), ""), json.dumps(schema)

    def add(self, schema: Any, near: Any) -> Any:
        """Register a schema that is derived from one of the document."""
        self._added.append(schema)  # keeps its id
        self._paths[id(schema)] = self.path(near)
        self._bases[id(schema)] = self._bases.get(id(near), "")
        return schema

    def _scan(self, schema: Any, path: str, base: str) -> None:
        pending = [(schema, path, base)]
        while pending:
            part, path, base = pending.pop()
            if not isinstance(part, Mapping) or id(part) in self._bases:
                continue
            _draft_of(part, path)
            base = self._register(part, base)
            self._paths[id(part)] = path
            self._bases[id(part)] = base
            pending += [(inner, f"{path}/{key}", base) for key, inner in _subschemas(part)]

    def _register(self, part: Mapping[str, Any], base: str) -> str:
        """Record the identifiers of a subschema and return its base URI."""
        own = part.get("id" if self.draft <= 4 else "$id")
        if isinstance(own, str) and not (self.draft <= 7 and "$ref" in part):
            if own.startswith("#"):
                self._anchors[base, own[1:]] = part
            else:
                base = urldefrag(_join(base, own)).url
                self._resources[base] = part
        for name in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := part.get(name), str) and self.draft >= 2019:
                self._anchors[base, anchor] = part
                if name == "$dynamicAnchor":
                    self._dynamic.add((base, anchor))
        return base

    def resolve(self, schema: Any, keyword: str, ref: Any) -> Any:
        """Return what a reference in a schema points to. Raises `UnsupportedSchemaError`."""
        path = self.path(schema)
        if not isinstance(ref, str):
            raise UnsupportedSchemaError(keyword, f"must be a text, not {ref!r:.60}", path)
        base, fragment = urldefrag(_join(self._bases.get(id(schema), ""), ref))
        fragment = unquote(fragment)
        if base not in self._resources:
            raise UnsupportedSchemaError(keyword, f"{ref!r:.80} points to another document", path)
        found = self._resources[base]
        if fragment and not fragment.startswith("/"):
            if (base, fragment) not in self._anchors:
                raise UnsupportedSchemaError(keyword, f"{ref!r:.80} points to nothing", path)
            if keyword == "$dynamicRef" and (base, fragment) in self._dynamic:
                base = self._outermost(fragment, path)
            return self._anchors[base, fragment]
        for key in fragment.split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdigit() and int(key) < len(found):
                found = found[int(key)]
            else:
                raise UnsupportedSchemaError(keyword, f"{ref!r:.80} points to nothing", path)
        if isinstance(found, Mapping) and id(found) not in self._bases:
            self._scan(found, fragment, base)  # in a keyword that holds no schemas
        return found

    def _outermost(self, anchor: str, path: str) -> str:
        """Return the resource in which a dynamic reference ends; values begin at the root."""
        bases = [base for base, name in self._dynamic if name == anchor]
        root = self._bases[id(self.root)]
        if root in bases or len(bases) == 1:
            return root if root in bases else bases[0]
        raise UnsupportedSchemaError("$dynamicRef", "has several targets", path)


def _draft_of(schema: Mapping[str, Any], path: str) -> int:
    """Return the draft that a schema names. Raises `UnsupportedSchemaError` for an unknown one.

    A meta-schema of one's own may switch keywords off, so it is not taken for a draft.
    """
    named = schema.get("$schema")
    if named is None:
        return LATEST
    if isinstance(named, str):
        match = _META_SCHEMA.fullmatch(named)
        if match and (draft := _DRAFTS.get(match["draft"] or "")) is not None:
            return draft
        for pattern, draft in _ANNOTATING:
            if pattern.fullmatch(named):
                return draft
    raise UnsupportedSchemaError(
        "$schema", f"names no draft from 3 to 2020-12: {named!r:.80}", path
    )


def _join(base: str, ref: str) -> str:
    return base + ref if ref.startswith("#") else urljoin(base, ref)


def _subschemas(part: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _MAPS:
        if isinstance(inner := part.get(name), Mapping):
            yield from ((f"{name}/{_escaped(key)}", value) for key, value in inner.items())
    for name in _LISTS:
        if isinstance(inner := part.get(name), list):
            yield from ((f"{name}/{i}", value) for i, value in enumerate(inner))
    for name in _SINGLE:
        if isinstance(inner := part.get(name), Mapping):
            yield name, inner


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
