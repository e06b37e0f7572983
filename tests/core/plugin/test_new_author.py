"""New author: `new`, the printed commands, and a served request for every kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from builtin_plugins.commands.plugins.scaffold import TARGETS
from core.testing.checkpoints import make_checkpoint
from tests.core.plugin.new_author_plugins import Newcomer, machine_time_s, post

MAX_S: Final = 60.0
"""Processor time from `new` to the answer, of one kind."""
CHAT: Final = "/v1/chat/completions"
TOOL: Final = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object"}},
}
SCRIPTED: Final = "scripted:"


@dataclass(frozen=True)
class Act:
    """How a plugin as it is written is used, and a line of it that runs then.

    `acme` stands for its name everywhere.
    """

    line: str
    """Runs in the request; with `at_start`, when the server starts."""
    flags: tuple[str, ...] = ()
    model: str = SCRIPTED
    """A prefix with a name, or an architecture of which a tiny checkpoint is served; of that as
    another if it is "acme".
    """
    path: str = "/v1/completions"
    body: Mapping[str, Any] | None = field(default_factory=dict)
    """Additional request fields; None for a GET request."""
    answer: str = ""
    """Stands in the answer."""
    at_start: bool = False
    first: bool = False
    """Its entry says that it is a second choice; here it becomes the first."""
    command: tuple[str, ...] = ()
    """Run instead of a server."""


LLAMA: Final = "LlamaForCausalLM"
ACTS: Final[Mapping[str, Act]] = {
    "clients": Act("self.num_requests += len(requests)", first=True),
    "platforms": Act(
        "return torch.zeros(num_bytes", ("--device", "acme"), model=LLAMA, at_start=True
    ),
    "executors": Act("started = time.monotonic()", ("--distributed-executor-backend", "acme")),
    "launchers": Act("return self._inner.start(what", ("--launcher", "acme"), at_start=True),
    "workers": Act("self.num_steps += 1", first=True),
    "models": Act("layers = (layer,)", model="acme", at_start=True),
    "weight_loaders": Act(
        "yield from tensors.items()", ("--load-format", "acme"), model=LLAMA, at_start=True
    ),
    "quant_methods": Act("return (x @ weight", ("--quantization", "acme"), model=LLAMA),
    "attention_backends": Act("group = params.heads", ("--attention-backend", "acme"), model=LLAMA),
    "op_impls": Act("scale = weight.float() + offset", model=LLAMA, first=True),
    "logits_processors": Act(
        "logits[i, self._tokens[row]] =",
        body={"vllm_xargs": {"acme": [ord("i")]}, "max_tokens": 3},
        answer='"h',
    ),
    "runners": Act("self.num_tokens += len(hidden)", ("--runner", "acme")),
    "input_processors": Act("pixels = np.asarray", command=("plugins", "check", "acme")),
    "poolers": Act(
        "return (hidden[:1]",
        ("--runner", "pooling", "--pooler-config", '{"pooling_type": "acme"}'),
        model=LLAMA,
        path="/v1/embeddings",
        body={"input": "hello"},
        answer='"embedding"',
    ),
    "speculators": Act(
        "return recent[:1]",
        (
            "--speculative-config",
            '{"method": "acme", "num_speculative_tokens": 2, "adaptive": false}',
        ),
        body={"prompt": "aaaaaaaa"},
        answer='"aaaaaaaa"',
    ),
    "kv_connectors": Act(
        "self._known[key] = True",
        ("--kv-transfer-config", '{"kv_connector": "acme"}', "--block-size", "16"),
        body={"prompt": "hello there " * 20},
    ),
    "kv_eviction": Act(
        "queue = self._often if self._uses",
        ("--kv-eviction-policy", "acme", "--block-size", "16"),
        body={"prompt": "hello there " * 20},
    ),
    "scheduling_policies": Act(
        "return (request.num_prompt_tokens", ("--scheduling-policy", "acme")
    ),
    "tokenizers": Act("ids: list[int] = []", ("--tokenizer-mode", "acme")),
    "chat_renderers": Act('prompt = "\\n".join', path=CHAT, first=True),
    "tool_parsers": Act(
        "reader.add_call(name, arguments)",
        ("--enable-auto-tool-choice", "--tool-call-parser", "acme"),
        path=CHAT,
        body={
            "messages": [{"role": "user", "content": '<call>weather{"days": 2}</call>'}],
            "tools": [TOOL],
        },
        answer='"weather"',
    ),
    "reasoning_parsers": Act(
        'yield from reader.reasoning_until("</thought>")',
        ("--reasoning-parser", "acme"),
        path=CHAT,
        body={"messages": [{"role": "user", "content": "<thought>Is it?</thought>Yes."}]},
        answer='"Is it?"',
    ),
    "grammar_backends": Act(
        "return any(text.startswith",
        ("--structured-outputs-config.backend", "acme"),
        body={"structured_outputs": {"choice": ["yes", "no"]}},
    ),
    "servers": Act("uvicorn.run(", first=True, at_start=True),
    "routes": Act('return JSONResponse({"models"', path="/acme", body=None, answer='"models"'),
    "metric_sinks": Act("self.finished_requests += 1"),
    "commands": Act("sys.stdout.write", command=("acme", "--name", "Ada"), answer="Hello, Ada."),
    "admission_extensions": Act(
        "prefix = self._read", body={"prompt": "there", "acme": "hello "}, answer='"hello there"'
    ),
    "scheduler_extensions": Act(
        "self._running.add(request.request_id)", ("--acme-max-running", "1")
    ),
    "runner_extensions": Act("return (logits / self._cap)", ("--acme-cap", "5")),
    "options": Act(
        "return (request.num_prompt", ("--scheduling-policy", "acme", "--acme-patience", "3")
    ),
    "find_model": Act('return "scripted:"', model="acme:echo", answer='"hi there"', at_start=True),
    "add_hooks": Act("for plugin, words in context", command=("acme", "en")),
}


def test_every_kind_and_extension_point_is_covered() -> None:
    assert ACTS.keys() == TARGETS.keys()


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    return Newcomer(tmp_path_factory.mktemp("newcomer"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(
        LLAMA, tmp_path_factory.mktemp("checkpoint"), rope_parameters=None, attention_bias=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ACTS)
def test_new_plugin_serves_a_request(
    kind: str, newcomer: Newcomer, checkpoint: Path, tmp_path: Path
) -> None:
    name = f"my{kind.replace('_', '')}"
    act = ACTS[kind]
    with machine_time_s() as spent:
        printed = newcomer.engine("plugins", "new", name, "--kind", kind)
        newcomer.run(printed.splitlines()[-1].removeprefix("Next: "), shell=True)
        seen = tmp_path / "seen"
        _mark(newcomer.folder / f"engine-{name}" / f"engine_{name}", act, name, seen)
        chosen = ("--plugins", name)
        if act.command:
            answer = newcomer.engine(*chosen, *_named(act.command, name))
        else:
            model = _model(act, name, checkpoint, tmp_path)
            with newcomer.serving(model, *chosen, *_named(act.flags, name)) as url:
                if not act.at_start:
                    seen.unlink(missing_ok=True)
                answer = post(f"{url}{_named(act.path, name)}", _body(act, name))
    assert seen.is_file()
    assert _named(act.answer, name) in answer
    assert spent[0] < MAX_S


def _named(value: Any, name: str) -> Any:
    """Return plain data with `acme` replaced by the plugin name."""
    return json.loads(json.dumps(value).replace("acme", name))


def _body(act: Act, name: str) -> dict[str, Any] | None:
    if act.body is None:
        return None
    usual = (
        {"messages": [{"role": "user", "content": "hello"}]}
        if act.path == CHAT
        else {"prompt": "hi there"}
    )
    if "input" in act.body:
        return dict(act.body)
    return {**usual, "max_tokens": 40, "temperature": 0, **_named(act.body, name)}


def _model(act: Act, name: str, checkpoint: Path, folder: Path) -> str:
    """Return the model to serve: a name, or a checkpoint folder with the new architecture."""
    if ":" in act.model:
        return _named(act.model, name)
    served = folder / "model"
    served.mkdir()
    for file in checkpoint.iterdir():
        (served / file.name).write_bytes(file.read_bytes())
    if act.model == "acme":
        config = json.loads((served / "config.json").read_text())
        config["architectures"] = [f"{name.capitalize()}ForCausalLM"]
        (served / "config.json").write_text(json.dumps(config))
    return str(served)


def _mark(package: Path, act: Act, name: str, seen: Path) -> None:
    """Insert code that creates a file before a line of the package runs."""
    line = act.line.replace("acme", name)
    (file,) = [file for file in package.glob("*.py") if line in file.read_text()]
    lines = file.read_text().splitlines()
    (at,) = [i for i, text in enumerate(lines) if line in text]
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    lines.insert(at, f'{indent}__import__("pathlib").Path({str(seen)!r}).touch()')
    file.write_text("\n".join([*lines, ""]))
    if act.first:
        plugin = package / "plugin.py"
        assert "priority=-10" in plugin.read_text()
        plugin.write_text(plugin.read_text().replace("priority=-10", "priority=100"))
