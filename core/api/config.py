"""Reading of settings, for commands."""

from core.cli.field_docs import field_doc, section_docs, show_default
from core.config.build import CONFIG_FILE, ENVIRONMENT_FIELDS, config_from_kwargs, read_environment
from core.config.fields import OPTIONS, Field, FieldTable, is_switch, metavar
from core.config.sections import LogprobsMode
from core.config.values import Size

__all__ = [
    "CONFIG_FILE",
    "ENVIRONMENT_FIELDS",
    "OPTIONS",
    "Field",
    "FieldTable",
    "LogprobsMode",
    "Size",
    "config_from_kwargs",
    "field_doc",
    "is_switch",
    "metavar",
    "read_environment",
    "section_docs",
    "show_default",
]
