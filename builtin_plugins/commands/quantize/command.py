"""The command: looks what there is, says what it will write, and writes it tensor by tensor."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.commands.sizes import show_bytes
from core.api import ConfigError, EngineConfig, ModelError, ModelSource, did_you_mean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    import torch

    from builtin_plugins.commands.quantize.layers import Found
    from builtin_plugins.commands.quantize.schemes import Scheme

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


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of a checkpoint's tensors."""

    scheme: Scheme
    group: int
    weights: Mapping[str, str]
    """Names of those that are quantized, and the prefixes by which the model knows them."""
    plain: Sequence[str]
    """Modules that stay as they are, though they are linear layers to some."""


class Quantize:
    """Writes a quantized copy of a checkpoint."""

    help = "Write a checkpoint with fewer bits for each weight, in the format compressed-tensors, which other engines read."
    takes_engine_options = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the places and the scheme."""
        parser.add_argument("model", help="local folder or hub id of a plain checkpoint")
        parser.add_argument(
            "out", metavar="OUT", help="folder to write; it must be empty or not be there"
        )
        names = "int8, int4, int4-asym, int3, int2, w8a8, fp8, fp8-block, nvfp4, mxfp4"
        parser.add_argument(
            "--scheme", default=DEFAULT, metavar="NAME", help=f"{names}; default: {DEFAULT}"
        )
        text = "inputs that share a scale, of integers (-1: all of a row); default: the largest of 128, 64, 32, 16 that divides all"
        parser.add_argument("--group-size", type=int, metavar="N", help=text)
        text = f"module to leave plain, by its name, the end of it, or re:PATTERN; may be repeated; {HEAD} always is"
        parser.add_argument("--ignore", action="append", default=[], metavar="MODULE", help=text)
        text = "a text that the model reads first: scales keep exact what its inputs make large (integers only)"
        parser.add_argument("--scales", metavar="FILE", help=text)

    def run(self, context: Any) -> int:
        """Write the checkpoint."""
        args = context.args
        config = context.config
        registry = context.registry
        from builtin_plugins.commands.quantize.schemes import (
            OTHER_NAMES,
            SCHEMES,
        )  # lazy: torch is slow to import

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
            raise ConfigError(f"--scales chooses scales of integers; {name} has none.")
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(
                f"{out} is there already, and not an empty folder; give another name."
            )
        source = _plain_source(config, registry)
        loader = _loader(config, source, registry)
        plan, pieces = _plan(scheme, args, config, source, registry, loader)
        importance = _importance(args, config, registry)
        try:
            _write(out, source, loader, plan, pieces, importance)
        except OSError as error:
            raise ConfigError(f"{out} cannot be written: {error}.") from error
        size, before = (
            show_bytes(number)
            for number in (sum(piece.num_bytes for piece in pieces), loader.total_bytes())
        )
        more = f" and {len(plan.plain) - 3} more" if len(plan.plain) > 3 else ""
        print(
            f"{args.out}: {len(plan.weights)} weights of {config.model.model} quantized, {size} in "
            f"place of {before}; "
            f"plain are {', '.join(plan.plain[:3])}{more}"
        )
        return 0


def _plain_source(config: EngineConfig, registry: Any) -> ModelSource:
    """Return the model, whose weights must be in files and plain."""
    source: ModelSource | None = registry.find_model(config.model.model, config)
    if source is None or source.path is None:
        raise ModelError(
            f"{config.model.model!r} is no checkpoint that a plugin finds; give a folder or a hub "
            "id."
        )
    if source.quantization:
        raise ModelError(
            f"{source.name} is stored as {source.quantization!r} already; rounding it again would "
            "lose more. Take the "
            "checkpoint that it was made from."
        )
    return source


def _loader(config: EngineConfig, source: ModelSource, registry: Any) -> Any:
    from core.models.layers.loading import weight_loader  # lazy: torch is slow to import

    loader = weight_loader(config, source, registry)
    if not hasattr(loader, "headers"):
        raise ModelError(
            f"{source.name} has no safetensors files, whose headers say what there is before it is "
            "read."
        )
    return loader


def _plan(
    scheme: Scheme, args: Any, config: EngineConfig, source: ModelSource, registry: Any, loader: Any
) -> tuple[Plan, list[Any]]:
    """Return what becomes of every tensor, and what it will take."""
    from builtin_plugins.commands.quantize.layers import (
        linear_weights,
    )  # lazy: torch is slow to import
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
    asked: Sequence[str], ignored: Sequence[Callable[[str], bool]], found: Found
) -> None:
    """Refuse names that no module has: one that is misspelt would be quantized."""
    known = [name.removesuffix(".weight") for name in found.linear_weights] + [*found.others, HEAD]
    for name, fits in zip(asked, ignored, strict=True):
        if not any(fits(module) for module in known):
            raise ConfigError(
                f"--ignore {name!r} is no module of the model{did_you_mean(name, known) or '.'}"
            )


def _ignored(text: str) -> Callable[[str], bool]:
    """Return what says whether a module is left out by a name, or by a pattern."""
    from builtin_plugins.quant_methods.stored.method import (
        mentions,  # lazy: torch is slow to import
    )
    from builtin_plugins.quant_methods.stored.patterns import Pattern

    if text.startswith(REGEX):
        return Pattern(text.removeprefix(REGEX), "--ignore").begins
    return lambda module: mentions(module, [text])


def _importance(args: Any, config: EngineConfig, registry: Any) -> dict[str, torch.Tensor]:
    if not args.scales:
        return {}
    from builtin_plugins.commands.quantize.importance import (
        read_text,
    )  # lazy: torch is slow to import

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
    importance: Mapping[str, torch.Tensor],
) -> None:
    """Write weights, then the files beside them, config.json last."""
    from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]  # lazy: with torch

    from builtin_plugins.commands.quantize.writing import (
        shared_out,
        write,
    )  # lazy: torch is slow to import

    out.mkdir(parents=True, exist_ok=True)
    total = sum(piece.num_bytes for piece in pieces)
    free = shutil.disk_usage(out).free
    if total + SPARE_BYTES > free:
        raise ConfigError(
            f"{out} would take {show_bytes(total)}, and {show_bytes(free)} are free there."
        )
    before = loader.total_bytes()
    with tqdm(
        total=before, unit="B", unit_scale=True, desc="quantizing", disable=not sys.stderr.isatty()
    ) as bar:

        def read() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in loader.tensors():
                yield name, tensor
                bar.update(tensor.nbytes)
                del tensor  # or its pages would stay while the next one is read

        write(out, shared_out(pieces), _changed(plan, read(), importance))
    folder = Path(source.path or "")
    _copy_beside(folder, out)
    settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    settings["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": plan.scheme.layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": plan.scheme.config(plan.group)},
        "ignore": list(plan.plain),
        "kv_cache_scheme": None,
    }
    (out / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _copy_beside(folder: Path, out: Path) -> None:
    """Copy tokenizer, templates and whatever else belongs to the model and is no weight."""
    for path in sorted(folder.iterdir()):
        is_weight = path.suffix in WEIGHTS or path.name.endswith(".index.json")
        if (
            path.is_file()
            and not is_weight
            and path.name != CONFIG
            and not path.name.startswith(".")
        ):
            shutil.copyfile(path, out / path.name)
