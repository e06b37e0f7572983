"""The command `engine completion SHELL`: prints a completion script, which shtab generates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from builtin_plugins.commands.completion.parsers import command_line

if TYPE_CHECKING:
    import argparse

    from core.api import CommandContext

SHELLS: Final = ("bash", "zsh", "fish")


class Completion:
    """Prints a script that completes commands, flags and their values; it starts no process."""

    help = (
        "Print a completion script of the loaded plugins' commands and flags. bash: `engine "
        "completion bash > ~/.local/share/bash-completion/completions/engine`; zsh: `engine "
        "completion zsh > FOLDER/_engine` with a folder of $fpath; fish: `engine completion fish > "
        "~/.config/fish/completions/engine.fish`. Repeat it after plugins were installed."
    )
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the shell."""
        parser.add_argument("shell", choices=SHELLS, help="the shell")

    def run(self, context: CommandContext) -> int:
        """Print the script; return 0."""
        import shtab  # lazy: only this command needs it

        print(shtab.complete(command_line(context.registry), shell=context.args.shell))
        return 0
