"""Page of the options that take JSON: their keys, from the classes that hold them."""

from __future__ import annotations

from typing import Final

from builtin_plugins.features.kv_events.settings import Settings as KVEventsConfig
from builtin_plugins.features.structured_outputs.settings import StructuredOutputsConfig
from builtin_plugins.kv_connectors.api import KVTransferConfig
from builtin_plugins.kv_connectors.tcp.connector import Settings as TcpSettings
from builtin_plugins.speculators.api import SpeculativeConfig
from scripts.reference.attributes import Attribute, attributes_of

CLASSES: Final = {
    "`--speculative-config`": SpeculativeConfig,
    "`--structured-outputs-config`": StructuredOutputsConfig,
    "`--kv-transfer-config`": KVTransferConfig,
    "`kv_connector_extra_config` of `tcp`": TcpSettings,
    "`--kv-events-config`": KVEventsConfig,
}
INTRO: Final = """\
# Settings in JSON

Keys of the options that take JSON. A key may also be set alone, as in
`--structured-outputs-config.backend xgrammar`.
"""
HEAD: Final = "| key | type | default | meaning |\n| --- | --- | --- | --- |\n"


def json_settings_page() -> str:
    """Return the page as markdown."""
    parts = [INTRO]
    for title, owner in CLASSES.items():
        parts.append(f"\n## {title}\n\n{HEAD}")
        for attribute in attributes_of(owner):
            parts.append(_row(attribute))
    return "".join(parts)


def _row(attribute: Attribute) -> str:
    text, _, default = attribute.declared.removeprefix(f"{attribute.name}: ").partition(" = ")
    kind = text.replace("|", "\\|")
    default = f"`{default}`".replace("field(default_factory=dict)", "{}") if default else ""
    return f"| `{attribute.name}` | `{kind}` | {default} | {attribute.text} |\n"
