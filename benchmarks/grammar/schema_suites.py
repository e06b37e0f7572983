"""Compares masks with the instances of public JSON Schema suites.

Reads checkouts of json-schema-org/JSON-Schema-Test-Suite (`--suite`) and
guidance-ai/jsonschemabench (`--bench`). Each instance is written byte by byte along the masks, with
its properties in any order and its numbers in any notation. Counted are schemas that an engine
refuses, invalid instances that can be written and valid ones that cannot.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Protocol

from builtin_plugins.grammar_backends.languages.decimals import text_of
from builtin_plugins.grammar_backends.schema_compiler.compiler import compile_schema
from builtin_plugins.grammar_backends.schema_compiler.document import UnsupportedSchemaError

_END: Final = 256
_MAX_STEPS: Final = 3_000
"""Maximum number of attempts to write one instance."""
_SKIPPED: Final = ("format.json", "content.json", "format-assertion.json", "float-overflow.json")
"""Files about annotations only: `format` is enforced here."""


class RefusedError(Exception):
    """An engine refuses a schema."""


class Matcher(Protocol):
    """A position in a grammar over bytes."""

    def advance(self, text: bytes) -> bool:
        """Advance by a text, or change nothing and return False."""

    def back(self, count: int) -> None:
        """Undo some bytes."""

    def is_done(self) -> bool:
        """Return whether the text may end here."""


# --- engines ----------------------------------------------------------------------------


class _Bytes:
    """Vocabulary of bytes for llguidance."""

    bos_token_id = None
    eos_token_id = _END
    tokens: Final = [*(bytes((i,)) for i in range(256)), b"\xff<end>"]
    special_token_ids: Final = [_END]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


class _Guidance:
    def __init__(self, grammar: str) -> None:
        import llguidance

        tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=257)
        limits = llguidance.LLParserLimits(initial_lexer_fuel=20_000_000)
        self._matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if self._matcher.is_error():
            raise RefusedError(self._matcher.get_error().strip()[:200])

    def advance(self, text: bytes) -> bool:
        if not text:
            return True
        if self._matcher.is_stopped() or self._matcher.validate_tokens([*text]) != len(text):
            return False
        return bool(self._matcher.consume_tokens([*text]))

    def back(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)

    def is_done(self) -> bool:
        return bool(self._matcher.is_accepting())


class _XGrammar:
    def __init__(self, schema: Any) -> None:
        import xgrammar

        info = xgrammar.TokenizerInfo(
            [*_Bytes.tokens[:-1], b""],
            xgrammar.VocabType.RAW,
            vocab_size=257,
            stop_token_ids=[_END],
        )
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        try:
            made = compiler.compile_json_schema(json.dumps(schema), strict_mode=False)
        except (RuntimeError, ValueError, TypeError) as error:
            raise RefusedError(str(error)[-200:]) from error
        self._matcher = xgrammar.GrammarMatcher(made, terminate_without_stop_token=False)

    def advance(self, text: bytes) -> bool:
        for count, byte in enumerate(text):
            if not self._matcher.accept_token(byte):
                self.back(count)
                return False
        return True

    def back(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)

    def is_done(self) -> bool:
        fits = self._matcher.accept_token(_END)
        if fits:
            self._matcher.rollback(1)
        return bool(fits)


def engine(name: str, schema: Any) -> Matcher:
    """Return the start of a schema's grammar. Raises `RefusedError`."""
    import llguidance

    if name == "xgrammar":
        return _XGrammar(schema)
    if name == "llguidance":
        try:
            return _Guidance(
                llguidance.LLMatcher.grammar_from_json_schema(
                    json.dumps(schema), overrides={"lenient": False}
                )
            )
        except (ValueError, TypeError) as error:
            raise RefusedError(str(error)[:200]) from error
    try:
        grammar = compile_schema(schema, closes=False)
    except UnsupportedSchemaError as error:
        raise RefusedError(f"{error.keyword}: {error}") from error
    return _Guidance(llguidance.grammar_from("lark", grammar))


# --- instances --------------------------------------------------------------------------


class _GiveUpError(Exception):
    """An instance took too many attempts."""


class _Instance:
    """Writes a value in all ways that a grammar allows."""

    def __init__(self, matcher: Matcher, names: dict[str, int]) -> None:
        """`names`: those in the schema, by their order. Others are written last, in one order."""
        self._matcher = matcher
        self._names = names
        self._steps = 0

    def can_be_written(self, value: Any) -> bool:
        text = json.dumps(value, ensure_ascii=False)
        try:
            encoded = text.encode()
        except UnicodeEncodeError:
            return False  # a lone surrogate is no text
        if self._matcher.advance(encoded):
            done = self._matcher.is_done()
            self._matcher.back(len(encoded))
            if done:
                return True
        ways = self._value(value)
        return any(self._matcher.is_done() for _ in ways)

    def _text(self, text: str) -> Iterator[None]:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise _GiveUpError
        encoded = text.encode()
        if self._matcher.advance(encoded):
            try:
                yield
            finally:
                self._matcher.back(len(encoded))

    def _value(self, value: Any) -> Iterator[None]:
        if isinstance(value, dict):
            known = sorted((n for n in value if n in self._names), key=self._names.__getitem__)
            others = [name for name in value if name not in self._names]
            for _ in self._text("{"):
                for last in [None, *others[:-1]]:
                    order = [name for name in others if name != last]
                    order += [] if last is None else [last]
                    yield from self._members(value, known, order, "")
        elif isinstance(value, list):
            for _ in self._text("["):
                yield from self._items(value, 0)
        else:
            for text in _notations(value):
                yield from self._text(text)

    def _items(self, values: list[Any], index: int) -> Iterator[None]:
        if index == len(values):
            yield from self._text("]")
            return
        for _ in self._text(", " if index else ""):
            for _ in self._value(values[index]):
                yield from self._items(values, index + 1)

    def _members(
        self, value: dict[str, Any], known: list[str], others: list[str], comma: str
    ) -> Iterator[None]:
        if not known and not others:
            yield from self._text("}")
            return
        ways = [(name, known[:i] + known[i + 1 :], others) for i, name in enumerate(known)]
        ways += [(others[0], known, others[1:])] if others else []
        for name, rest, more in ways:
            for _ in self._text(f"{comma}{json.dumps(name, ensure_ascii=False)}: "):
                for _ in self._value(value[name]):
                    yield from self._members(value, rest, more, ", ")


def names_in(schema: Any) -> dict[str, int]:
    """Return the names of properties in a schema, in order."""
    found: dict[str, int] = {}
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            required = part.get("required")
            names = [*part, *(required if isinstance(required, list) else ())]
            for name in names:
                found.setdefault(str(name), len(found))
            pending += [*part.values()][::-1]
        elif isinstance(part, list):
            pending += part
    return found


def _notations(value: Any) -> list[str]:
    """Return the ways to write a scalar."""
    found = [json.dumps(value, ensure_ascii=False)]
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = text_of(Fraction(found[0]))
        if number is not None:
            found.append(number)
    return [*dict.fromkeys(found)]


# --- suites -----------------------------------------------------------------------------


def read_suite(root: Path) -> Iterator[tuple[str, str, Any, list[Any]]]:
    """Yield (group, name, schema, tests) of JSON-Schema-Test-Suite."""
    for draft, uri in (
        ("draft2020-12", "https://json-schema.org/draft/2020-12/schema"),
        ("draft7", "http://json-schema.org/draft-07/schema#"),
    ):
        for path in sorted((root / "tests" / draft).rglob("*.json")):
            if path.name in _SKIPPED:
                continue
            group = f"suite {draft}{' optional' if 'optional' in path.parts else ''}"
            for index, case in enumerate(json.loads(path.read_text())):
                schema = case["schema"]
                if isinstance(schema, dict):
                    schema = {"$schema": uri, **schema}
                yield group, f"{draft}/{path.stem}#{index}", schema, case["tests"]


def read_bench(root: Path, only: str) -> Iterator[tuple[str, str, Any, list[Any]]]:
    """Yield (group, name, schema, tests) of JSONSchemaBench's MaskBench."""
    for path in sorted((root / "maskbench" / "data").glob("*.json")):
        if only in path.name:
            case = json.loads(path.read_text())
            group = path.name.split("---")[0] if "---" in path.name else path.name.split("_")[0]
            yield group, path.stem, case["schema"], case.get("tests", [])


def judge(name: str, schema: Any, tests: list[Any]) -> dict[str, Any]:
    """Return what an engine makes of a schema and its instances."""
    try:
        matcher = engine(name, schema)
    except RefusedError as error:
        return {"refused": str(error)}
    allowed = []
    forbidden = []
    unknown = 0
    names = names_in(schema)
    for test in tests:
        try:
            written = _Instance(matcher, names).can_be_written(test["data"])
        except _GiveUpError:
            matcher = engine(name, schema)
            unknown += 1
            continue
        if written and not test["valid"]:
            allowed.append(test.get("description", ""))
        elif test["valid"] and not written:
            forbidden.append(test.get("description", ""))
    return {"allowed": allowed, "forbidden": forbidden, "unknown": unknown}


def _serve(connection: Connection) -> None:
    """Judge schemas until the other end closes; in a thread with room for deep recursion."""

    def loop() -> None:
        sys.setrecursionlimit(100_000)
        while True:
            try:
                connection.send(judge(*connection.recv()))
            except EOFError:
                return
            except Exception as error:  # noqa: BLE001 - an engine may raise anything
                connection.send({"refused": f"{type(error).__name__}: {error}"[:200]})

    threading.stack_size(1 << 29)
    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()


class _Judge:
    """A process that can be replaced when an engine hangs or crashes."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._process: Any = None

    def __call__(self, schema: Any, tests: list[Any]) -> dict[str, Any]:
        if self._process is None:
            self._connection, other = multiprocessing.Pipe()
            self._process = multiprocessing.Process(target=_serve, args=(other,), daemon=True)
            self._process.start()
            other.close()
        try:
            self._connection.send((self._name, schema, tests))
            if self._connection.poll(self._timeout_s):
                found: dict[str, Any] = self._connection.recv()
                return found
            reason = f"took more than {self._timeout_s} s"
        except (EOFError, OSError):
            reason = "crashed"
        self._process.kill()
        self._process = None
        return {"refused": f"{reason}"}


def main() -> None:
    """Print one line per engine and group, and the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", type=Path, help="checkout of JSON-Schema-Test-Suite")
    parser.add_argument("--bench", type=Path, help="checkout of jsonschemabench")
    parser.add_argument("--only", default="", help="part of the names of MaskBench's files")
    parser.add_argument("--engines", default="own", help="own, llguidance, xgrammar; with commas")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds per schema")
    parser.add_argument("--errors", type=int, default=20, help="errors to print per group")
    parser.add_argument("--stride", type=int, default=1, help="take each n-th schema")
    args = parser.parse_args()
    cases = []
    if args.suite:
        cases += [*read_suite(args.suite)]
    if args.bench:
        cases += [*read_bench(args.bench, args.only)]
    cases = cases[:: args.stride]
    for name in args.engines.split(","):
        report(name, cases, args.timeout, args.errors)


def report(
    name: str, cases: list[tuple[str, str, Any, list[Any]]], timeout_s: float, limit: int
) -> None:
    """Judge all schemas with one engine and print the result."""
    judged = _Judge(name, timeout_s)
    counts: dict[str, Counter[str]] = {}
    reasons: dict[str, Counter[str]] = {}
    errors: dict[str, list[str]] = {}
    for group, case, schema, tests in cases:
        found = judged(schema, tests)
        count = counts.setdefault(group, Counter())
        count["schemas"] += 1
        count["instances"] += len(tests)
        if "refused" in found:
            count["refused"] += 1
            keyword = found["refused"].partition(": ")[0][:60]
            reasons.setdefault(group, Counter())[keyword] += 1
            if limit > 1000:
                errors.setdefault(group, []).append(f"{case}: refused {found['refused']}")
            continue
        count["allowed"] += len(found["allowed"])
        count["forbidden"] += len(found["forbidden"])
        count["unknown"] += found["unknown"]
        count["covered"] += not found["allowed"] and not found["forbidden"]
        for kind in ("allowed", "forbidden"):
            errors.setdefault(group, []).extend(
                f"{case}: wrongly {kind}: {text}" for text in found[kind]
            )
    for group, count in counts.items():
        share = 100 * count["covered"] / count["schemas"]
        print(
            f"{name} {group}: {count['schemas']} schemas, {count['instances']} instances, "
            f"{count['refused']} refused, {count['allowed']} wrongly allowed, "
            f"{count['forbidden']} wrongly forbidden, {count['unknown']} undecided, "
            f"coverage {share:.1f} %"
        )
        by_count = sorted(reasons.get(group, {}).items(), key=lambda pair: -pair[1])
        for keyword, number in by_count[:limit]:
            print(f"    {number} refused for {keyword}")
        for error in errors.get(group, [])[:limit]:
            print(f"    {error}")


if __name__ == "__main__":
    main()
