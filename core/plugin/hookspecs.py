# mypy: disable-error-code="empty-body"
"""All hooks. The docs page and `engine plugins show` are generated from these docstrings.

A hook named after a kind returns a plugin's entries of that kind. It is called once per process,
while the registry is built. Lifecycle hooks are called at the events they name, never in a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from core.plugin.entry import hookspec

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.config.fields import Option
    from core.contracts.admission import AdmissionExtension
    from core.contracts.models import ModelSource
    from core.contracts.registry import Registry
    from core.contracts.scheduling import SchedulerExtension
    from core.contracts.workers import RunnerExtension
    from core.plugin.entry import Entry

# --- kinds ------------------------------------------------------------------


@hookspec
def engine_clients() -> Sequence[Entry]:
    """Clients: how the frontend talks to the engine."""


@hookspec
def engine_platforms() -> Sequence[Entry]:
    """Devices the engine runs on."""


@hookspec
def engine_executors() -> Sequence[Entry]:
    """Executors, which run workers."""


@hookspec
def engine_launchers() -> Sequence[Entry]:
    """Launchers, which start the engine's processes (`--launcher`)."""


@hookspec
def engine_workers() -> Sequence[Entry]:
    """Workers, which compute on one device."""


@hookspec
def engine_models() -> Sequence[Entry]:
    """Model architectures, named as in `config.json`."""


@hookspec
def engine_weight_loaders() -> Sequence[Entry]:
    """Readers of checkpoints (`--load-format`)."""


@hookspec
def engine_quant_methods() -> Sequence[Entry]:
    """Quantization methods (`--quantization`)."""


@hookspec
def engine_attention_backends() -> Sequence[Entry]:
    """Attention over a paged KV cache (`--attention-backend`)."""


@hookspec
def engine_op_impls() -> Sequence[Entry]:
    """Implementations of ops, named `op` or `op/variant`; references are in `core.models.ops`."""


@hookspec
def engine_logits_processors() -> Sequence[Entry]:
    """Logits processors, applied before sampling."""


@hookspec
def engine_input_processors() -> Sequence[Entry]:
    """Processors of images in prompts, by architecture; `transformers` serves all others."""


@hookspec
def engine_runners() -> Sequence[Entry]:
    """What models are run for (`--runner`)."""


@hookspec
def engine_poolers() -> Sequence[Entry]:
    """Poolers, which combine a prompt's hidden states (`--pooler-config`)."""


@hookspec
def engine_speculators() -> Sequence[Entry]:
    """Speculators, which propose draft tokens (`method` of `--speculative-config`)."""


@hookspec
def engine_kv_connectors() -> Sequence[Entry]:
    """KV connectors to other cache tiers and engines (`--kv-transfer-config`)."""


@hookspec
def engine_kv_eviction() -> Sequence[Entry]:
    """Eviction orders of cached blocks (`--kv-eviction-policy`)."""


@hookspec
def engine_scheduling_policies() -> Sequence[Entry]:
    """Scheduling policies, which order requests (`--scheduling-policy`)."""


@hookspec
def engine_tokenizers() -> Sequence[Entry]:
    """Tokenizers (`--tokenizer-mode`)."""


@hookspec
def engine_chat_renderers() -> Sequence[Entry]:
    """Chat renderers, from messages to prompts."""


@hookspec
def engine_tool_parsers() -> Sequence[Entry]:
    """Tool call formats of model families (`--tool-call-parser`)."""


@hookspec
def engine_reasoning_parsers() -> Sequence[Entry]:
    """Reasoning formats of model families (`--reasoning-parser`)."""


@hookspec
def engine_grammar_backends() -> Sequence[Entry]:
    """Grammar backends, which constrain outputs to a schema, regex or grammar."""


@hookspec
def engine_servers() -> Sequence[Entry]:
    """Servers of route groups."""


@hookspec
def engine_routes() -> Sequence[Entry]:
    """HTTP route groups. Third-party routes are served only if their plugin is named."""


@hookspec
def engine_metric_sinks() -> Sequence[Entry]:
    """Metric sinks."""


@hookspec
def engine_commands() -> Sequence[Entry]:
    """Subcommands of `engine`."""


# --- lifecycle --------------------------------------------------------------


@hookspec
def engine_options() -> Sequence[Option]:
    """Options of the plugin: flags, config file keys and keywords."""


@hookspec
def engine_missing_entries() -> Mapping[str, str]:
    """Names that users know from other engines and no plugin provides: what is
    missing, by `kind:name`.

    The error of such a name contains the text. A plugin that provides an entry needs no
    change here.
    """
    raise NotImplementedError


@hookspec
def engine_find_model(model: str, config: EngineConfig) -> ModelSource | str | None:
    """Return the source of a model name (`scripted:`, a folder, a hub id), or None.

    A string is another name, such as a folder, which is looked up instead. Plugins are called by
    name, those with `tryfirst` first and `trylast` last; the first answer wins.
    """


@hookspec
def engine_resolve(decisions: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Receive every automatic decision by name before anything is built; return changes.

    Changes are logged with the plugin's name. Two different changes of one decision stop the start.
    """


@hookspec
def engine_admission_extensions(
    config: EngineConfig, registry: Registry
) -> Sequence[AdmissionExtension]:
    """Admission halves of the features that the configuration enables."""


@hookspec
def engine_scheduler_extensions(
    config: EngineConfig, registry: Registry
) -> Sequence[SchedulerExtension]:
    """Scheduler halves of the features that the configuration enables.

    `registry.shared` holds objects that the halves of a feature share in one process.
    """


@hookspec
def engine_runner_extensions(config: EngineConfig, registry: Registry) -> Sequence[RunnerExtension]:
    """Worker halves of the features that the configuration enables."""


@hookspec
def engine_process_start(process: str) -> None:
    """A process of the engine has loaded its plugins; `process` is "main", "engine" or "worker"."""


@hookspec
def engine_add_hooks() -> Sequence[Any]:
    """Modules of hook specifications that a plugin adds, for other plugins to extend it.

    Hook names begin with `engine_`. The plugin calls them with `registry.call_hook(hook,
    **arguments)`.
    """
