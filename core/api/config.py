"""Reading of settings, for commands."""

from core.cli.field_docs import field_doc, section_docs, show_default
from core.cli.flags import split_dotted
from core.config.build import CONFIG_FILE, ENVIRONMENT_FIELDS, config_from_kwargs, read_environment
from core.config.fields import OPTIONS, Field, FieldTable, is_switch, metavar
from core.config.files import read_config_file
from core.config.sections import LogprobsMode
from core.config.values import Size
from core.option_files import (
    MAX_YAML_BYTES,
    check_option_file,
    compose_yaml,
    create_option_file,
    open_option_file,
    read_option_bytes,
    read_option_json,
    read_option_text,
)

__all__ = [
    "CONFIG_FILE",
    "ENVIRONMENT_FIELDS",
    "MAX_YAML_BYTES",
    "OPTIONS",
    "Field",
    "FieldTable",
    "LogprobsMode",
    "Size",
    "check_option_file",
    "compose_yaml",
    "config_from_kwargs",
    "create_option_file",
    "field_doc",
    "is_switch",
    "metavar",
    "open_option_file",
    "read_config_file",
    "read_environment",
    "read_option_bytes",
    "read_option_json",
    "read_option_text",
    "section_docs",
    "show_default",
    "split_dotted",
]
