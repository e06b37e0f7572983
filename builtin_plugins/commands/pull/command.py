"""The command `engine pull`: downloads repositories of the hub into its cache."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builtin_plugins.commands.models.command import served_architectures
from builtin_plugins.commands.models.on_disk import hub_cache, read_architecture
from builtin_plugins.commands.sizes import show_bytes
from builtin_plugins.model_sources.api import (
    SETTINGS,
    WEIGHTS,
    download,
    is_hub_id,
    list_downloads,
)
from core.api import ConfigError, EngineConfig, ModelError
from core.api.config import config_from_kwargs

if TYPE_CHECKING:
    import argparse

    from core.api import CommandContext

PATTERNS = (*SETTINGS, *WEIGHTS)


class Pull:
    """Downloads models; what is in the cache already is not downloaded again."""

    help = (
        "Download models or adapters from the hub into its cache, where `engine serve` finds them. "
        "Files that are there already are not downloaded again."
    )
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the repositories and the settings of the hub."""
        parser.add_argument(
            "models", nargs="+", metavar="MODEL", help="hub id, such as Qwen/Qwen3-0.6B"
        )
        parser.add_argument("--revision", help="branch, tag or commit; default: main")
        parser.add_argument(
            "--download-dir", metavar="DIR", help="another folder than the hub's cache"
        )
        parser.add_argument("--hf-token", metavar="TOKEN", help="default: HF_TOKEN")
        parser.add_argument(
            "--ignore-patterns", nargs="+", metavar="PATTERN", help="files that are not downloaded"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="print the sizes without a download"
        )

    def run(self, context: CommandContext) -> int:
        """Download every repository; return 0. Raises `ModelError` for the first that fails."""
        args = context.args
        for name in args.models:
            if not is_hub_id(name):
                raise ConfigError(
                    f"MODEL: got {name!r:.100}; expected the id of a repository on the hub, such "
                    "as Qwen/Qwen3-0.6B. Local folders need no download."
                )
        for name in args.models:
            _pull(name, context)
        return 0


def _pull(name: str, context: CommandContext) -> None:
    args = context.args
    given: dict[str, Any] = {
        key: getattr(args, key) for key in ("revision", "download_dir", "hf_token")
    }
    if args.ignore_patterns is not None:
        given["ignore_patterns"] = args.ignore_patterns
    config = config_from_kwargs({"model": name, **given}, context.registry.options())
    try:
        _check_space(name, config, dry_run=args.dry_run)
    except ModelError:  # without a network the cache may still have all of it
        if args.dry_run:
            raise
    if args.dry_run:
        return
    folder = download(name, config, PATTERNS)
    architecture = read_architecture(folder)
    how = served_architectures(context).get(architecture, "")
    print(f"{name}: {architecture or 'no architecture'}{f', {how}' if how else ''}, in {folder}")
    if how == "not served":
        print(f"  `engine models {architecture}` says why it is not served")


def _check_space(name: str, config: EngineConfig, *, dry_run: bool) -> None:
    """Print the size of a download. Raises `ConfigError` if the disk is too small for it."""
    files = list_downloads(name, config, PATTERNS)
    missing = sum(file.num_bytes for file in files if not file.is_cached)
    total = sum(file.num_bytes for file in files)
    print(
        f"{name}: {show_bytes(total)} in {len(files)} files, {show_bytes(missing)} to download",
        flush=True,
    )
    folder = Path(config.load.download_dir or hub_cache()).expanduser()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if missing > free and not dry_run:
        raise ConfigError(
            f"--download-dir: got {folder} with {show_bytes(free)} free; expected "
            f"{show_bytes(missing)} for {name}. Free space, or name a folder on another disk."
        )
