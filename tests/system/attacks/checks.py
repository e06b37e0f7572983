"""Checks without a server. Each raises `Fault`: they run under `python -O` too.

Run: python tests/system/attacks/checks.py NAME...
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

from builtin_plugins.output_parsers.api import ParseRequest, ToolFormat
from core.api import ConfigError, EngineConfig, ModelError
from core.errors import EngineError

ROOT: Final = Path(__file__).parents[3]
SOURCES: Final = [
    path
    for folder in ("core", "builtin_plugins", "kernels", "plugins")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not {"tests", "template"} & set(path.relative_to(ROOT).parts)
]
PICKLE_MODULES: Final = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "_pickle"}
PICKLE_METHODS: Final = {"recv_pyobj", "send_pyobj", "broadcast_object_list"}
UNSAFE_LOADERS: Final = {"torch.load", "numpy.load", "np.load", "yaml.load", "yaml.unsafe_load"}
EVALUATORS: Final = {"eval", "exec", "compile", "__import__"}
MAY_EVALUATE: Final = {Path("core/plugin/manager.py")}
"""Runs the plugin file that the operator names, like an import."""
REQUEST_KINDS: Final = ("routes", "servers", "chat_renderers", "tokenizers", "output_parsers")
"""Folders of builtins that process client input."""
TEST_KITS: Final = {"conformance", "conformance.py", "testing", "testing.py"}
"""Their asserts are for tests, which clients do not reach."""
CANARY: Final = "the-canary-sang"


class Fault(Exception):
    """What a check found."""


# --- Source code ----------------------------------------------------------------------------------


def nothing_is_unpickled() -> None:
    """No module imports pickle or the like, loads such files, or sends objects between ranks."""
    for path, node in _nodes():
        if bad := _imported(node) & PICKLE_MODULES:
            raise Fault(f"{path} imports {bad}")
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            sends_objects = "torch" in called and "_object" in called.rpartition(".")[2]
            if called in UNSAFE_LOADERS or sends_objects:
                raise Fault(f"{path}:{node.lineno} calls {called}")
        if isinstance(node, ast.Attribute) and node.attr in PICKLE_METHODS:
            raise Fault(f"{path}:{node.lineno} uses {node.attr}")


def no_text_is_evaluated() -> None:
    """No builtin evaluator is called; methods of the same name, such as `re.compile`, may be."""
    for path, node in _nodes():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id in EVALUATORS and path not in MAY_EVALUATE:
            raise Fault(f"{path}:{node.lineno} calls {node.func.id}")


def no_call_trusts_remote_code() -> None:
    """Only the user enables `trust_remote_code`; no call in the source does."""
    for path, node in _nodes():
        if not isinstance(node, ast.keyword) or node.arg != "trust_remote_code":
            continue
        if isinstance(node.value, ast.Constant) and node.value.value:
            raise Fault(f"{path}:{node.value.lineno} trusts remote code")


def request_handling_has_no_assert() -> None:
    """Asserts are for internal invariants; code that processes client input has none."""
    for path, node in _nodes():
        kind, *folders = path.parts
        if kind != "builtin_plugins" or not isinstance(node, ast.Assert):
            continue
        if TEST_KITS & set(folders):
            continue
        if folders[0] in REQUEST_KINDS:
            raise Fault(f"{path}:{node.lineno} asserts while it processes a request")


@cache
def _nodes() -> list[tuple[Path, ast.AST]]:
    if not SOURCES:
        raise Fault("no source was found")
    missing = [kind for kind in REQUEST_KINDS if not (ROOT / "builtin_plugins" / kind).is_dir()]
    if missing:
        raise Fault(f"no folder {missing}")
    return [
        (path.relative_to(ROOT), node)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
    ]


def _imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {(node.module or "").partition(".")[0]}
    return set()


# --- Model folders --------------------------------------------------------------------------------


def model_code_does_not_run() -> None:
    """Modules in a model's folder are not imported, even with `trust_remote_code`."""
    classes = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "canary.Canary")
    with _model({"auto_map": classes}) as folder:
        canary = folder / CANARY
        code = f"import pathlib\npathlib.Path({str(canary)!r}).write_text('')\nclass Canary: pass\n"
        for name in (
            "canary.py",
            "modeling_canary.py",
            "configuration_canary.py",
            "tokenization_canary.py",
            "__init__.py",
        ):
            (folder / name).write_text(code)
        _load(folder, trust_remote_code=True)
        if canary.exists():
            raise Fault("a model's code was run")


def pickled_weights_are_rejected() -> None:
    """A folder with pickled weights only is rejected, and no pickle in it is opened."""
    with _model({}) as folder:
        canary = folder / CANARY
        # The pickle of `pathlib.Path(...).touch()`, written by hand: nothing here may pickle.
        trap = b"cpathlib\nPath\n(V" + str(canary).encode() + b"\ntR(dV\nb."
        for name in ("pytorch_model.bin", "model.pt", "consolidated.00.pth", "training_args.bin"):
            (folder / name).write_bytes(trap)
        (folder / "model.safetensors").unlink()
        message = _load(folder)
        if canary.exists():
            raise Fault("a pickle was opened")
        if "can run code" not in message:
            raise Fault(f"the error for pickled weights does not say so: {message!r}")


def impossible_configs_are_rejected() -> None:
    """A checkpoint's config is checked at load; the error names the field."""
    cases: list[tuple[str, dict[str, Any]]] = [
        ("rope", {"rope_scaling": {"rope_type": "zzz", "factor": -1}}),
        ("eos_token_id", {"eos_token_id": 99_999_999}),
    ]
    for field, changes in cases:
        with _model(changes) as folder:
            message = _load(folder)
            if field not in message:
                raise Fault(f"{changes}: the error does not name {field}: {message!r}")


@contextmanager
def _model(changes: dict[str, Any]) -> Iterator[Path]:
    """Make a small checkpoint with config changes."""
    from core.testing.checkpoints import make_checkpoint

    with tempfile.TemporaryDirectory() as name:
        folder = make_checkpoint("LlamaForCausalLM", Path(name))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))
        yield folder


def _load(folder: Path, **settings: Any) -> str:
    """Load a model and generate; return the error message, or an empty string."""
    from core import LLM, SamplingParams

    try:
        with LLM(
            str(folder), max_model_len=64, kv_cache_memory_bytes=1 << 22, num_threads=1, **settings
        ) as llm:
            llm.generate([1, 2, 3], SamplingParams(max_tokens=2), use_tqdm=False)
    except (ModelError, ConfigError, EngineError, ValueError) as error:
        return str(error)
    return ""


# --- Text and bytes -------------------------------------------------------------------------------


def tool_calls_are_not_executed() -> None:
    """Every tool parser treats code in a call's arguments as text."""
    from builtin_plugins.output_parsers.api import OutputParser
    from core.plugin import load_plan, make_plan

    registry = load_plan(make_plan(["none", "tool_parsers"]))
    with tempfile.TemporaryDirectory() as name:
        canary = Path(name) / CANARY
        code = f"__import__('pathlib').Path({str(canary)!r}).touch()"
        for registered in registry.entries("tool_parsers"):
            tool_format: ToolFormat = registry.load(registered)
            for text in _calls(code, tool_format):
                parser = OutputParser(
                    ParseRequest(tools=_TOOLS),
                    tools=tool_format,
                    special=frozenset(tool_format.markers),
                )
                parser.whole(text)
                if canary.exists():
                    raise Fault(f"{registered.entry.name} executed its input")


_TOOLS: Final = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"a": {"type": "object"}}}},
    }
]


def _calls(code: str, tool_format: ToolFormat) -> Iterator[str]:
    """Return code as the arguments of several families, and between this family's markers."""
    parameter = f"<parameter=a>\n{code}\n</parameter>"
    yield f"<tool_call>\n<function=f>\n{parameter}\n</function>\n</tool_call>"
    yield f"[f(a={code})]"
    yield f'<tool_call>{{"name": "f", "arguments": {code}}}</tool_call>'
    for marker in tool_format.markers:
        yield f"{marker}f(a={code}){marker}{code}{''.join(tool_format.markers)}"


def api_keys_are_compared_in_constant_time() -> None:
    """Every given key is compared with all keys, as equally long digests, by `compare_digest`."""
    from builtin_plugins.servers.http.guard import Guard
    from builtin_plugins.servers.http.limits import Limits

    lengths: list[tuple[int, int]] = []
    original = secrets.compare_digest

    def record_lengths(one: Any, other: Any) -> bool:
        lengths.append((len(one), len(other)))
        return original(one, other)

    secrets.compare_digest = record_lengths
    try:
        limits = Limits.from_options({})
        keys = ["first", "second", "third"]
        guard: Any = Guard(None, limits, api_keys=keys)  # type: ignore[arg-type]
        results = []
        for key in (b"first", b"third", b"f", b"", b"x" * 1000):
            for name, value in ((b"authorization", b"Bearer " + key), (b"x-api-key", key)):
                results.append(bool(guard._known({"headers": [(name, value)]})))
    finally:
        secrets.compare_digest = original
    if results != [True] * 4 + [False] * 6:
        raise Fault(f"keys are accepted as {results}")
    if len(lengths) != 60 or len({length for pair in lengths for length in pair}) != 1:
        raise Fault(f"comparisons of lengths {lengths}")


def process_messages_are_structs() -> None:
    """Messages between processes are decoded as typed structs; other bytes are rejected."""
    import msgspec

    from core.step import StepPlan, StepResult

    for kind in (StepPlan, StepResult):
        for data in (b"", b"\x80\x04\x95", b"\xff" * 64, b"cos\nsystem\n(V\ntR."):
            try:
                msgspec.msgpack.decode(data, type=kind)
            except msgspec.DecodeError:
                continue
            raise Fault(f"{data!r} is a {kind.__name__}")


def grammar_cache_is_bounded() -> None:
    """The cache of compiled constraints has a size limit in bytes, and writes no files."""
    from builtin_plugins.features.structured_outputs.settings import StructuredOutputsConfig

    config = StructuredOutputsConfig.of(
        EngineConfig(options={"structured_outputs_config": {"cache_bytes": 1 << 20}})
    )
    if config.cache_bytes != 1 << 20:
        raise Fault("cache_bytes has no effect")
    folders = [
        ROOT / "builtin_plugins" / "features" / "structured_outputs",
        ROOT / "builtin_plugins" / "grammar_backends",
    ]
    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise Fault(f"no folder {missing}")
    for plugin in (ROOT / "plugins").rglob("plugin.py"):
        if "grammar_backends" in plugin.read_text():
            folders.append(plugin.parent)
    writes = re.compile(r"write_text|write_bytes|diskcache|sqlite3|OUTLINES_CACHE")
    for path in SOURCES:
        if not any(folder in path.parents for folder in folders):
            continue
        lines = [line for line in path.read_text().splitlines() if "/proc/self/" not in line]
        if writes.search("\n".join(lines)):
            raise Fault(f"{path.relative_to(ROOT)} writes files")


def main(names: list[str]) -> int:
    """Run checks by name; print which failed."""
    # Collections over half a million syntax nodes take as long as parsing the sources.
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
