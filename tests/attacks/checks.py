"""Checks that need no server. Each raises `Fault`, not by an assert: they run under `python -O` as
well.

Run: python tests/attacks/checks.py NAME...
"""

from __future__ import annotations

import ast
import gc
import json
import re
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from core.api import ConfigError, EngineConfig, ModelError, ParseRequest, ToolFormat
from core.errors import EngineError

ROOT: Final = Path(__file__).parents[2]
OURS: Final = [
    path
    for folder in ("core", "builtin_plugins", "kernels", "plugins")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not {"tests", "template"} & set(path.relative_to(ROOT).parts)
]
PICKLES: Final = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "_pickle"}
EVALUATES: Final = {"eval", "exec", "compile", "__import__"}
LOADS: Final = {"torch.load", "numpy.load", "np.load", "yaml.load", "yaml.unsafe_load"}
MAY_EVALUATE: Final = {Path("core/plugin/manager.py")}
"""Runs a plugin file that the operator names, as imports would."""
EDGES: Final = (
    "routes",
    "servers",
    "chat_renderers",
    "tokenizers",
    "tool_parsers",
    "reasoning_parsers",
)
"""Folders of builtins through which what clients send goes first."""
CANARY: Final = "the-canary-sang"


class Fault(Exception):
    """What a check found."""


# --- what is written in the sources ---------------------------------------------------------------


def nothing_is_unpickled() -> None:
    """No module imports pickle or the like, loads files that way, or sends objects between ranks."""
    for path, node in _nodes():
        names = _imported(node)
        if bad := names & PICKLES:
            raise Fault(f"{path} imports {bad}")
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in LOADS or (
                "_object" in called.rpartition(".")[2] and "torch" in ast.unparse(node.func)
            ):
                raise Fault(f"{path}:{node.lineno} calls {called}")
        if isinstance(node, ast.Attribute) and node.attr in (
            "recv_pyobj",
            "send_pyobj",
            "broadcast_object_list",
        ):
            raise Fault(f"{path}:{node.lineno} uses {node.attr}")


def nothing_is_evaluated() -> None:
    """Nobody evaluates text; what has such a name is a method of its own, such as `re.compile`."""
    for path, node in _nodes():
        called = (
            node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        )
        if called in EVALUATES and path not in MAY_EVALUATE and isinstance(node, ast.Call):
            raise Fault(f"{path}:{node.lineno} calls {node.func.id}")


def trust_is_written_nowhere() -> None:
    """Code of a model's folder is run only where the user says so: no call says it for them."""
    for path, node in _nodes():
        said = (
            node.value
            if isinstance(node, ast.keyword) and node.arg == "trust_remote_code"
            else None
        )
        if isinstance(said, ast.Constant) and said.value:
            raise Fault(f"{path}:{said.lineno} trusts remote code")


def no_assert_stands_where_requests_are_read() -> None:
    """Asserts are for our own invariants; at the edge, where all that comes is somebody else's,
    there is none.
    """
    for path, node in _nodes():
        parts = path.parts
        if isinstance(node, ast.Assert) and parts[0] == "builtin_plugins" and parts[1] in EDGES:
            raise Fault(f"{path}:{node.lineno} asserts where requests are read")


@cache
def _nodes() -> list[tuple[Path, ast.AST]]:
    if not OURS:
        raise Fault("no source was found")
    return [
        (path.relative_to(ROOT), node)
        for path in OURS
        for node in ast.walk(ast.parse(path.read_text()))
    ]


def _imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {(node.module or "").partition(".")[0]}
    return set()


# --- what a model's folder may do -----------------------------------------------------------------


def code_of_a_model_does_not_run() -> None:
    """Modules that a config names, in the model's folder, are not imported, not even where code is
    trusted.
    """
    with _model(
        {"auto_map": dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "canary.Canary")}
    ) as folder:
        sang = folder / CANARY
        code = f"import pathlib\npathlib.Path({str(sang)!r}).write_text('')\nclass Canary: pass\n"
        for name in (
            "canary.py",
            "modeling_canary.py",
            "configuration_canary.py",
            "tokenization_canary.py",
            "__init__.py",
        ):
            (folder / name).write_text(code)
        _loaded(folder, trust_remote_code=True)
        if sang.exists():
            raise Fault("a model's code was run")


def pickled_weights_are_not_read() -> None:
    """A folder whose weights are pickles only is refused, and no pickle in it is opened."""
    with _model({}) as folder:
        sang = folder / CANARY
        # What unpickling would run: pathlib.Path(...).touch(), spelled by hand so that nobody here
        # pickles anything.
        trap = b"cpathlib\nPath\n(V" + str(sang).encode() + b"\ntR(dV\nb."
        for name in ("pytorch_model.bin", "model.pt", "consolidated.00.pth", "training_args.bin"):
            (folder / name).write_bytes(trap)
        (folder / "model.safetensors").unlink()
        said = _loaded(folder)
        if sang.exists():
            raise Fault("a pickle was opened")
        if "can run code" not in said:
            raise Fault(f"weights that are pickles are not refused by name: {said!r}")


def impossible_configs_are_refused() -> None:
    """What a checkpoint says of itself is checked when it is loaded; the refusal names the field."""
    cases: list[tuple[str, dict[str, Any]]] = [
        ("rope", {"rope_scaling": {"rope_type": "zzz", "factor": -1}}),
        ("eos_token_id", {"eos_token_id": 99_999_999}),
    ]
    for named, changes in cases:
        with _model(changes) as folder:
            said = _loaded(folder)
            if named not in said:
                raise Fault(f"{changes} is served, or refused without a word on {named}: {said!r}")


@contextmanager
def _model(changes: dict[str, Any]) -> Iterator[Path]:
    """Make a small model whose config says more."""
    from core.testing.checkpoints import make_checkpoint

    with tempfile.TemporaryDirectory() as name:
        folder = make_checkpoint("LlamaForCausalLM", Path(name))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))
        yield folder


def _loaded(folder: Path, **settings: Any) -> str:
    """Load a model and ask it something; return what it was refused with, or nothing."""
    from core import LLM, SamplingParams

    try:
        with LLM(
            str(folder), max_model_len=64, kv_cache_memory_bytes=1 << 22, num_threads=1, **settings
        ) as llm:
            llm.generate([1, 2, 3], SamplingParams(max_tokens=2), use_tqdm=False)
    except (ModelError, ConfigError, EngineError, ValueError) as error:
        return str(error)
    return ""


# --- what is done with text and bytes -------------------------------------------------------------


def calls_are_read_and_not_run() -> None:
    """Code in the arguments of a call is text to every parser of calls."""
    from builtin_plugins.output_parsers.runtime.output import OutputParser
    from core.plugin import load_plan, make_plan

    registry = load_plan(make_plan(["none", "tool_parsers"]))
    with tempfile.TemporaryDirectory() as name:
        sang = Path(name) / CANARY
        code = f"__import__('pathlib').Path({str(sang)!r}).touch()"
        for registered in registry.entries("tool_parsers"):
            form: ToolFormat = registry.load(registered)
            for text in _calls(code, form):
                OutputParser(
                    ParseRequest(tools=_TOOLS), tools=form, special=frozenset(form.markers)
                ).whole(text)
                if sang.exists():
                    raise Fault(f"{registered.entry.name} ran what it read")


_TOOLS: Final = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"a": {"type": "object"}}}},
    }
]


def _calls(code: str, form: ToolFormat) -> Iterator[str]:
    """Return code where arguments stand in several families, between all markers of this one."""
    yield f"<tool_call>\n<function=f>\n<parameter=a>\n{code}\n</parameter>\n</function>\n</tool_call>"
    yield f"[f(a={code})]"
    yield f'<tool_call>{{"name": "f", "arguments": {code}}}</tool_call>'
    for marker in form.markers:
        yield f"{marker}f(a={code}){marker}{code}{''.join(form.markers)}"


def keys_are_compared_in_constant_time() -> None:
    """Whatever key is given, all keys are compared with it, as digests of one length, by
    `compare_digest`.
    """
    from builtin_plugins.servers.http.guard import Guard
    from builtin_plugins.servers.http.limits import Limits

    seen: list[tuple[int, int]] = []
    original = secrets.compare_digest

    def counted(one: Any, other: Any) -> bool:
        seen.append((len(one), len(other)))
        return original(one, other)

    secrets.compare_digest = counted
    try:
        guard: Any = Guard(None, Limits.from_options({}), api_keys=["first", "second", "third"])  # type: ignore[arg-type]
        answers = []
        for given in (b"first", b"third", b"f", b"", b"x" * 1000):
            for name, value in ((b"authorization", b"Bearer " + given), (b"x-api-key", given)):
                answers.append(bool(guard._known({"headers": [(name, value)]})))
    finally:
        secrets.compare_digest = original
    if answers != [True] * 4 + [False] * 6:
        raise Fault(f"keys are known as {answers}")
    if len(seen) != 60 or len({length for pair in seen for length in pair}) != 1:
        raise Fault(f"comparisons of lengths {seen}")


def messages_are_structs() -> None:
    """What the sockets between processes carry is read as structs of given types; other bytes are
    refused.
    """
    import msgspec

    from core.step import StepPlan, StepResult

    for kind in (StepPlan, StepResult):
        for data in (b"", b"\x80\x04\x95", b"\xff" * 64, b"cos\nsystem\n(V\ntR."):
            try:
                msgspec.msgpack.decode(data, type=kind)
            except msgspec.DecodeError:
                continue
            raise Fault(f"{data!r} is a {kind.__name__}")


def compiled_grammars_are_kept_in_bounded_room() -> None:
    """The room for compiled constraints is a number of bytes, and nobody keeps them in files."""
    from builtin_plugins.features.structured_outputs.settings import StructuredOutputsConfig

    config = StructuredOutputsConfig.of(
        EngineConfig(options={"structured_outputs_config": {"cache_bytes": 1 << 20}})
    )
    if config.cache_bytes != 1 << 20:
        raise Fault("cache_bytes is not taken")
    writes = re.compile(r"write_text|write_bytes|diskcache|sqlite3|OUTLINES_CACHE")
    folders = [
        ROOT / "builtin_plugins" / name for name in ("structured_outputs", "grammar_backends")
    ]
    folders += [
        path.parent
        for path in (ROOT / "plugins").rglob("plugin.py")
        if "grammar_backends" in path.read_text()
    ]
    for path in OURS:
        lines = [line for line in path.read_text().splitlines() if "/proc/self/" not in line]
        if any(folder in path.parents for folder in folders) and writes.search("\n".join(lines)):
            raise Fault(f"{path.relative_to(ROOT)} writes files")


def main(names: list[str]) -> int:
    """Run checks by name; say which failed."""
    # looking through half a million nodes of sources again and again takes as long as parsing them
    gc.disable()
    failed = 0
    for name in names:
        try:
            globals()[name]()
        except Fault as fault:
            failed += 1
            print(f"{name}: {fault}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
