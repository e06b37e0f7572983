"""The contract of launchers, and how to find the chosen one; as stable as `core.api`."""

from builtin_plugins.launchers.contract import ChildProcess, Group, Launcher
from builtin_plugins.launchers.selection import make_launcher

__all__ = ["ChildProcess", "Group", "Launcher", "make_launcher"]
