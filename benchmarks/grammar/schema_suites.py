"""Compares masks with the instances of public JSON Schema suites.

Reads checkouts of json-schema-org/JSON-Schema-Test-Suite (`--suite`) and
guidance-ai/jsonschemabench (`--bench`). Each instance is written byte by byte along the masks, with
its properties in any order and its numbers in any notation. For our grammars all spellings are
decided (`derivations`); peers get a search that may give up. Counted are schemas that an engine
refuses, invalid instances that can be written and valid ones that cannot.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Protocol

from benchmarks.grammar.derivations import Derivations, notations
from builtin_plugins.grammar_backends.schema_compiler.compiler import compile_schema
from builtin_plugins.grammar_backends.schema_compiler.document import (
    Document,
    UnsupportedSchemaError,
)

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


@cache
def _tokenizer() -> Any:
    import llguidance

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=257)


class _Guidance:
    def __init__(self, grammar: str) -> None:
        import llguidance

        tokenizer = _tokenizer()
        limits = llguidance.LLParserLimits(
            initial_lexer_fuel=1 << 60, max_items_in_row=1_000_000, step_max_items=100_000_000
        )
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


class Own:
    """A grammar of ours: its derivations decide, and its matcher must agree with them."""

    def __init__(self, schema: Any) -> None:
        import llguidance

        try:
            self.grammar = compile_schema(schema, closes=False)
        except UnsupportedSchemaError as error:
            raise RefusedError(f"{error.keyword}: {error}") from error
        self.matcher = _Guidance(llguidance.grammar_from("lark", self.grammar))
        self._has_float_integers = Document(schema).draft > 4
        self._derivations: Derivations | None = None

    def can_be_written(self, value: Any, *, valid: bool) -> bool:
        """Return whether some spelling of a value can be written.

        In draft 4, 1.0 is no integer: that 1 can be written is no fault if 1.0 is invalid.
        """
        text = json.dumps(value, ensure_ascii=False)
        try:
            canonical = text.encode()
        except UnicodeEncodeError:
            return False  # a lone surrogate is no text
        if self._writes(canonical):
            return True
        if self._derivations is None:
            self._derivations = Derivations(self.grammar, _terminal)
        any_notation = valid or self._has_float_integers
        spelling = self._derivations.spelling(value, any_notation=any_notation)
        if spelling is not None and not self._writes(spelling):
            raise DisagreementError(spelling.decode())
        return spelling is not None

    def _writes(self, text: bytes) -> bool:
        if not self.matcher.advance(text):
            return False
        done = self.matcher.is_done()
        self.matcher.back(len(text))
        return done


class DisagreementError(Exception):
    """A grammar derives a text that its matcher refuses."""


def _terminal(grammar: str) -> Callable[[bytes], bool]:
    """Return the test for whole texts of a grammar."""
    import llguidance

    matcher = _Guidance(llguidance.grammar_from("lark", grammar))

    def matches(text: bytes) -> bool:
        if not matcher.advance(text):
            return False
        done = matcher.is_done()
        matcher.back(len(text))
        return done

    return matches


def engine(name: str, schema: Any) -> Matcher:
    """Return the start of a peer's grammar of a schema. Raises `RefusedError`."""
    import llguidance

    if name == "xgrammar":
        return _XGrammar(schema)
    try:
        return _Guidance(
            llguidance.LLMatcher.grammar_from_json_schema(
                json.dumps(schema), overrides={"lenient": False}
            )
        )
    except (ValueError, TypeError) as error:
        raise RefusedError(str(error)[:200]) from error


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
            for text in notations(value, any_notation=True):
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
    begun_s = time.thread_time()
    try:
        made: Any = Own(schema) if name == "own" else engine(name, schema)
    except RefusedError as error:
        return {"refused": str(error), "compile_s": time.thread_time() - begun_s}
    found: dict[str, Any] = {"compile_s": time.thread_time() - begun_s, "unknown": 0}
    found |= {"allowed": [], "forbidden": []}
    names = names_in(schema)
    for test in tests:
        try:
            if name == "own":
                written = made.can_be_written(test["data"], valid=test["valid"])
            else:
                written = _Instance(made, names).can_be_written(test["data"])
        except DisagreementError as error:
            found["forbidden"].append(f"derived text {error}")
            continue
        except _GiveUpError:
            made = engine(name, schema)
            found["unknown"] += test["valid"]  # of an invalid one, the peer is believed
            continue
        if written != test["valid"]:
            kind = "allowed" if written else "forbidden"
            found[kind].append(f"{test.get('description', '')} {json.dumps(test['data'])[:300]}")
    return found


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
    parser.add_argument("--output", type=Path, help="file for one line of JSON per schema")
    args = parser.parse_args()
    cases = []
    if args.suite:
        cases += [*read_suite(args.suite)]
    if args.bench:
        cases += [*read_bench(args.bench, args.only)]
    cases = cases[:: args.stride]
    for name in args.engines.split(","):
        report(name, cases, args)


def report(
    name: str, cases: list[tuple[str, str, Any, list[Any]]], args: argparse.Namespace
) -> None:
    """Judge all schemas with one engine and print the result."""
    judged = _Judge(name, args.timeout)
    groups: dict[str, list[tuple[str, int, dict[str, Any]]]] = {}
    with (args.output or Path(os.devnull)).open("a") as output:
        for group, case, schema, tests in cases:
            found = judged(schema, tests)
            groups.setdefault(group, []).append((case, len(tests), found))
            line = {"engine": name, "group": group, "case": case, "tests": len(tests), **found}
            print(json.dumps(line), file=output, flush=True)
    for group, rows in groups.items():
        _print_group(f"{name} {group}", rows, args.errors)


def _print_group(title: str, rows: list[tuple[str, int, dict[str, Any]]], limit: int) -> None:
    """Print the numbers of a group, why schemas are refused, and the errors."""
    served = [found for _, _, found in rows if "refused" not in found]
    reasons = Counter(
        found["refused"].partition(": ")[0][:60] for _, _, found in rows if "refused" in found
    )
    covered = sum(not found["allowed"] and not found["forbidden"] for found in served)
    times = sorted(found["compile_s"] for _, _, found in rows if "compile_s" in found) or [0.0]
    middle, high, longest = (times[int(q * (len(times) - 1))] * 1e3 for q in (0.5, 0.99, 1))
    print(
        f"{title}: {len(rows)} schemas, {sum(number for _, number, _ in rows)} instances, "
        f"{len(rows) - len(served)} refused, "
        f"{sum(len(found['allowed']) for found in served)} wrongly allowed, "
        f"{sum(len(found['forbidden']) for found in served)} wrongly forbidden, "
        f"{sum(found['unknown'] for found in served)} undecided, "
        f"coverage {100 * covered / len(rows):.1f} %; "
        f"compile median {middle:.1f} ms, 99 % {high:.1f}, maximum {longest:.1f}"
    )
    for keyword, number in sorted(reasons.items(), key=lambda pair: -pair[1])[:limit]:
        print(f"    {number} refused for {keyword}")
    errors = [
        f"{case}: wrongly {kind}: {text}"
        for case, _, found in rows
        for kind in ("allowed", "forbidden")
        for text in found.get(kind, ())
    ]
    for error in errors[:limit]:
        print(f"    {error[:200]}")


if __name__ == "__main__":
    main()
