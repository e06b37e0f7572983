"""The ways by which a file reaches the engine; each raises what its user sees.

Imported before the processes are forked, with everything that a load imports: it must start no
thread.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pkgutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import builtin_plugins
from core import LLM, AsyncLLM, RequestOutput, SamplingParams
from core.api import EngineConfig, EngineError, InvalidRequest, LoRARequest, RequestFailed
from tests.system.hostile_files.kv_folders import DAMAGES

for module in pkgutil.walk_packages(builtin_plugins.__path__, "builtin_plugins."):
    if not module.name.startswith("builtin_plugins.commands"):
        with suppress(ImportError):  # of an optional package
            importlib.import_module(module.name)

ENGINE: Final = {
    "max_model_len": 64,
    "num_gpu_blocks_override": 16,
    "max_num_seqs": 4,
    "num_threads": 1,
    "log_level": "error",
}
PROMPT: Final = "a" * 40 + " the 1234567890 b\n\n  c"
GREEDY: Final = SamplingParams(max_tokens=2, temperature=0.0)


def offline(folder: Path, options: Mapping[str, Any]) -> None:
    """Load a checkpoint, complete a text and answer a message."""
    llm = LLM(str(folder), **{**ENGINE, **options})
    try:
        (output,) = llm.generate([PROMPT], GREEDY)
        _check(output)
        (answer,) = llm.chat([{"role": "user", "content": PROMPT[-16:]}], GREEDY)
        _check(answer)
    finally:
        llm.shutdown()


ADAPTERS: Final = {**ENGINE, "enable_lora": True, "max_lora_rank": 16, "max_loras": 1}
MESSAGE: Final = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def _check(output: RequestOutput) -> None:
    """Raise `RequestFailed` with the error of a failed output."""
    if output.error:
        raise RequestFailed(output.error)
    assert output.outputs[0].finish_reason in ("stop", "length")


def adapter_offline(folder: Path, options: Mapping[str, Any]) -> None:
    """Complete a text with an adapter in the folder `adapter`."""
    llm = LLM(str(folder), **{**ADAPTERS, **options})
    try:
        request = LoRARequest("hostile", 1, str(folder / "adapter"))
        (output,) = llm.generate([PROMPT], GREEDY, lora_request=request)
        _check(output)
    finally:
        llm.shutdown()


def adapter_by_route(folder: Path, options: Mapping[str, Any]) -> None:
    """Load an adapter over HTTP, and answer a message with it."""
    path = str(folder / "adapter")
    _serve(
        folder,
        {**options, "lora_roots": [str(folder)], "enable_runtime_lora": True},
        ("/v1/load_lora_adapter", {"lora_name": "hostile", "lora_path": path}),
        ("/v1/chat/completions", {"model": "hostile", **MESSAGE}),
    )


def adapter_by_resolver(folder: Path, options: Mapping[str, Any]) -> None:
    """Answer a message with an adapter that a resolver finds."""
    _serve(
        folder,
        {**options, "lora_resolver_cache_dir": str(folder)},
        ("/v1/chat/completions", {"model": "adapter", **MESSAGE}),
    )


def _serve(folder: Path, options: Mapping[str, Any], *calls: tuple[str, Any]) -> None:
    """Send requests to a server in this process, with one to the model itself at the end.

    Raises `InvalidRequest` with the text of the first answer that is no 200, which must be a 4xx.
    """
    from tests.builtin_plugins.features.lora.api import Api

    engine = AsyncLLM(
        str(folder),
        served_model_name=["good"],
        disable_frontend_multiprocessing=True,
        **{**ADAPTERS, **options},
    )
    api = Api(engine)
    refusal = None
    try:
        for path, body in calls:
            reply = api.post(path, **body)
            if reply.status_code != 200:
                assert 400 <= reply.status_code < 500, reply.text
                refusal = InvalidRequest("answer", reply.json()["error"]["message"])
                break
        assert api.chat("good") is not None
    finally:
        api.close()
    if refusal is not None:
        raise refusal


def image_processor(folder: Path, options: Mapping[str, Any]) -> None:
    """Load the image processor of a checkpoint, and process a picture, in this process."""
    from PIL import Image

    from builtin_plugins.input_processors.transformers.processor import TransformersProcessor

    config = SimpleNamespace(**json.loads((folder / "config.json").read_text()))
    source: Any = SimpleNamespace(path=str(folder), hf_config=config)
    processor = TransformersProcessor(source, EngineConfig(options=dict(options)))
    try:
        item = processor.process("image", Image.new("RGB", (40, 30), "red"), {})
    finally:
        assert not Path("ran").exists()
    assert item.num_tokens > 0
    assert all(bool(tensor.isfinite().all()) for tensor in item.tensors.values())


def kv_folder(folder: Path, options: Mapping[str, Any]) -> None:
    """Fill a disk tier, damage its blocks, and complete the same text in a new engine."""
    expected = _complete(_with_tier(folder))
    _damage(folder, options["damage"])
    assert _complete(_with_tier(folder)) == expected


def kv_folder_while_running(folder: Path, options: Mapping[str, Any]) -> None:
    """Damage the blocks of a disk tier after a new engine has listed them."""
    expected = _complete(_with_tier(folder))
    llm = _with_tier(folder)
    _damage(folder, options["damage"])
    assert _complete(llm) == expected


def _with_tier(folder: Path) -> LLM:
    extra = {"folder": str(folder / "blocks")}
    transfer = {"kv_connector": "disk", "kv_connector_extra_config": extra}
    return LLM(str(folder), kv_transfer_config=transfer, **ENGINE)


def _complete(llm: LLM) -> list[int]:
    try:
        (output,) = llm.generate([PROMPT], GREEDY)
        _check(output)
        return list(output.outputs[0].token_ids)
    finally:
        llm.shutdown()


def _damage(folder: Path, name: str) -> None:
    blocks = [path for path in (folder / "blocks").rglob("*-*") if path.is_file()]
    assert blocks, "the tier has stored nothing"
    for path in blocks:
        DAMAGES[name](path)


def command(folder: Path, options: Mapping[str, Any]) -> None:
    """Run a command line. Raises `EngineError` with the error that it prints."""
    from core import option_files
    from core.cli.main import main

    setattr(option_files, "WRITER_S", 0.2)  # noqa: B010
    file = str(folder.parent / options["file"])
    arguments = [
        word.replace("{file}", file).replace("{folder}", str(folder))
        for word in options["arguments"]
    ]
    printed = io.StringIO()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with contextlib.redirect_stderr(printed):
        status = main(arguments)
    if status != 0:
        raise EngineError(printed.getvalue())
