"""`engine quantize`: plans the output tensors and writes them one by one."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.commands.sizes import show_bytes
from builtin_plugins.model_sources.api import read_settings_object
from core.api import ConfigError, EngineConfig, ModelError, did_you_mean
from core.api.models import ModelSource

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    import torch

    from builtin_plugins.commands.quantize.layers import Found
    from builtin_plugins.commands.quantize.schemes import Scheme
    from core.api import CommandContext
    from core.api.plugins import LoadedRegistry

DEFAULT: Final = "int4"
HEAD: Final = "lm_head"
REGEX: Final = "re:"
WEIGHTS: Final = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".gguf",
    ".msgpack",
    ".h5",
    ".onnx",
)
CONFIG: Final = "config.json"
SPARE_BYTES: Final = 1 << 26
MAX_COPIED_BYTES: Final = 1 << 27
"""Size limit of a copied file."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens to each tensor of a checkpoint."""

    scheme: Scheme
    group: int
    weights: Mapping[str, str]
    """Names of the quantized tensors, with their model prefixes."""
    plain: Sequence[str]
    """Linear modules that stay unquantized."""


class Quantize:
    """Writes a quantized copy of a checkpoint."""

    help = "Write a quantized checkpoint in the compressed-tensors format."
    takes_engine_options = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add paths and scheme."""
        parser.add_argument("model", help="local folder or hub id of an unquantized checkpoint")
        parser.add_argument("out", metavar="OUT", help="output folder; must be empty or new")
        names = "int8, int4, int4-asym, int3, int2, w8a8, fp8, fp8-block, nvfp4, mxfp4"
        parser.add_argument(
            "--scheme", default=DEFAULT, metavar="NAME", help=f"{names}; default: {DEFAULT}"
        )
        text = (
            "inputs per scale, for integers (-1: whole row); default: the largest of 128, "
            "64, 32, 16 that divides all layers"
        )
        parser.add_argument("--group-size", type=int, metavar="N", help=text)
        text = (
            "module to leave unquantized: its name, the end of it, or re:PATTERN; may be repeated; "
            f"{HEAD} always is"
        )
        parser.add_argument("--ignore", action="append", default=[], metavar="MODULE", help=text)
        text = "calibration text: scales minimize the error on its activations (integers only)"
        parser.add_argument("--scales", metavar="FILE", help=text)

    def run(self, context: CommandContext) -> int:
        """Write the checkpoint."""
        args = context.args
        config = context.config
        registry = context.registry
        # lazy: torch is slow to import
        from builtin_plugins.commands.quantize.schemes import OTHER_NAMES, SCHEMES

        name = OTHER_NAMES.get(args.scheme.lower(), args.scheme.lower())
        if name not in SCHEMES:
            known = (*SCHEMES, *OTHER_NAMES)
            raise ConfigError(
                f"--scheme {args.scheme!r} is not known{did_you_mean(name, known) or '.'} Known: "
                f"{', '.join(known)}."
            )
        scheme = SCHEMES[name]
        out = Path(args.out).expanduser()
        if args.scales and scheme.kind != "ints":
            raise ConfigError(f"--scales needs an integer scheme; {name} is not one.")
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"{out} exists and is not an empty folder.")
        source = _plain_source(config, registry)
        loader = _loader(config, source, registry)
        plan, pieces = _plan(scheme, args, config, source, registry, loader)
        others = _other_files(Path(source.path or ""))
        importance = _importance(args, config, registry)
        try:
            _write(out, source, loader, plan, pieces, others, importance)
        except OSError as error:
            raise ConfigError(f"{out} cannot be written: {error}.") from error
        size, before = (
            show_bytes(number)
            for number in (sum(piece.num_bytes for piece in pieces), loader.total_bytes())
        )
        more = f" and {len(plan.plain) - 3} more" if len(plan.plain) > 3 else ""
        print(
            f"{args.out}: {len(plan.weights)} weights of {config.model.model} quantized, "
            f"from {before} to {size}; not quantized: {', '.join(plan.plain[:3])}{more}"
        )
        return 0


def _plain_source(config: EngineConfig, registry: LoadedRegistry) -> ModelSource:
    """Return the model; it must be an unquantized checkpoint in files."""
    source: ModelSource | None = registry.find_model(config.model.model, config)
    if source is None or source.path is None:
        raise ModelError(
            f"model: got {config.model.model!r}; expected a checkpoint folder or a hub id."
        )
    if source.quantization:
        raise ModelError(
            f"model: {source.name} is quantized ({source.quantization}); expected an unquantized "
            "checkpoint. Use the original one."
        )
    return source


def _loader(config: EngineConfig, source: ModelSource, registry: LoadedRegistry) -> Any:
    from core.models.layers.loading import weight_loader  # lazy: torch is slow to import

    loader = weight_loader(config, source, registry)
    if not hasattr(loader, "headers"):
        raise ModelError(
            f"{source.name} has no safetensors files with headers that can be read before the data "
            "read."
        )
    return loader


def _plan(
    scheme: Scheme,
    args: Any,
    config: EngineConfig,
    source: ModelSource,
    registry: LoadedRegistry,
    loader: Any,
) -> tuple[Plan, list[Any]]:
    """Return the plan and the sizes of all output tensors."""
    # lazy: torch is slow to import
    from builtin_plugins.commands.quantize.layers import linear_weights
    from builtin_plugins.commands.quantize.schemes import group_for
    from builtin_plugins.commands.quantize.writing import Piece

    headers = list(loader.headers())
    found: Found = linear_weights(config, source, registry, headers)
    ignored = [_ignored(text) for text in args.ignore]
    _check_ignored(args.ignore, ignored, found)
    left = [
        name
        for name in found.linear_weights
        if any(fits(name.removesuffix(".weight")) for fits in ignored)
    ]
    weights = {name: prefix for name, prefix in found.linear_weights.items() if name not in left}
    if not weights:
        raise ModelError(
            "there is no linear layer to quantize: all are ignored, or experts' weights are one "
            "tensor."
        )
    shapes = {name: tensor.shape[1] for name, tensor in headers if name in weights}
    group = group_for(scheme, args.group_size, shapes)
    plain = [
        *dict.fromkeys([HEAD, *found.others, *(name.removesuffix(".weight") for name in left)])
    ]
    plan = Plan(scheme, group, weights, plain)
    pieces = [
        Piece(name, tensor.dtype, tuple(tensor.shape))
        for name, tensor in _changed(plan, headers, {})
    ]
    return plan, pieces


def _check_ignored(
    names: Sequence[str], ignored: Sequence[Callable[[str], bool]], found: Found
) -> None:
    """Reject names that match no module: a typo would quantize it."""
    known = [name.removesuffix(".weight") for name in found.linear_weights] + [*found.others, HEAD]
    for name, fits in zip(names, ignored, strict=True):
        if not any(fits(module) for module in known):
            raise ConfigError(
                f"--ignore {name!r} is no module of the model{did_you_mean(name, known) or '.'}"
            )


def _ignored(text: str) -> Callable[[str], bool]:
    """Return a predicate for modules that match a name or a pattern."""
    # lazy: torch is slow to import
    from builtin_plugins.model_sources.api import Pattern
    from builtin_plugins.quant_methods.api import mentions

    if text.startswith(REGEX):
        return Pattern(text.removeprefix(REGEX), "--ignore").match
    return lambda module: mentions(module, [text])


def _importance(
    args: Any, config: EngineConfig, registry: LoadedRegistry
) -> dict[str, torch.Tensor]:
    if not args.scales:
        return {}
    # lazy: torch is slow to import
    from builtin_plugins.commands.quantize.calibration import read_text

    return read_text(
        Path(args.scales), replace(config, model=replace(config.model, quantization=None)), registry
    )


def _changed(
    plan: Plan, tensors: Iterable[tuple[str, torch.Tensor]], importance: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of the new checkpoint."""
    for name, tensor in tensors:
        if name not in plan.weights:
            yield name, tensor
            continue
        known = importance.get(plan.weights[name])
        for suffix, made in plan.scheme.compress(tensor, plan.group, known).items():
            yield f"{name.removesuffix('.weight')}.{suffix}", made


def _write(
    out: Path,
    source: ModelSource,
    loader: Any,
    plan: Plan,
    pieces: list[Any],
    others: Sequence[Path],
    importance: Mapping[str, torch.Tensor],
) -> None:
    """Write weights, then the other files, config.json last."""
    from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]  # lazy: with torch

    # lazy: torch is slow to import
    from builtin_plugins.commands.quantize.writing import split_into_files, write

    out.mkdir(parents=True, exist_ok=True)
    total = sum(piece.num_bytes for piece in pieces)
    free = shutil.disk_usage(out).free
    if total + SPARE_BYTES > free:
        raise ConfigError(f"{out} needs {show_bytes(total)}; {show_bytes(free)} are free.")
    before = loader.total_bytes()
    with tqdm(
        total=before, unit="B", unit_scale=True, desc="quantizing", disable=not sys.stderr.isatty()
    ) as bar:

        def read() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in loader.tensors():
                yield name, tensor
                bar.update(tensor.nbytes)
                del tensor  # otherwise its pages stay while the next one is read

        write(out, split_into_files(pieces), _changed(plan, read(), importance))
    folder = Path(source.path or "")
    for path in others:
        shutil.copyfile(path, out / path.name)
    settings = read_settings_object(folder / CONFIG)
    settings["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": plan.scheme.layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": plan.scheme.config(plan.group)},
        "ignore": list(plan.plain),
        "kv_cache_scheme": None,
    }
    (out / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _other_files(folder: Path) -> list[Path]:
    """Return tokenizer, templates and all other files that are no weights.

    Raises `ModelError` for a link out of the checkpoint and for a huge file: a copy of a private
    file may be published with the checkpoint.
    """
    home = Path(os.path.realpath(folder))
    if home.parent.name == "snapshots":  # the hub's cache, with links to its blobs
        home = home.parents[1]
    found = []
    for path in sorted(folder.iterdir()):
        is_weight = path.suffix in WEIGHTS or path.name.endswith(".index.json")
        if is_weight or path.name == CONFIG or path.name.startswith(".") or not path.is_file():
            continue
        if not Path(os.path.realpath(path)).is_relative_to(home):
            raise ModelError(
                f"{path}: got a link out of the checkpoint; expected a file. Remove it."
            )
        if path.stat().st_size > MAX_COPIED_BYTES:
            raise ModelError(
                f"{path}: got {path.stat().st_size} bytes; expected up to {MAX_COPIED_BYTES} in a "
                "file that is no weight. Remove it."
            )
        found.append(path)
    return found
