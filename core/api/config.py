"""Reading of settings, for commands."""

from core.config.build import CONFIG_FILE, ENVIRONMENT_FIELDS, config_from_kwargs, read_environment
from core.config.sections import LogprobsMode
from core.config.values import Size

__all__ = [
    "CONFIG_FILE",
    "ENVIRONMENT_FIELDS",
    "LogprobsMode",
    "Size",
    "config_from_kwargs",
    "read_environment",
]
