"""All hooks. The docs page and `engine plugins show` are generated from the docstrings here.

A hook named after a kind returns the entries a plugin has of that kind; it is called once per
process while the registry is built. The lifecycle hooks below them are called at the moments they
name, never in a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from core.plugin.entry import hookspec

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.config.fields import Option
    from core.contracts import (
        AdmissionExtension,
        ModelSource,
        Registry,
        RunnerExtension,
        SchedulerExtension,
    )
    from core.plugin.entry import Entry

# --- kinds ----------------------------------------------------------------------------------------


@hookspec
def engine_clients() -> Sequence[Entry]:
    """Ways of reaching an engine from where it is served. Contract: `core.contracts.Client`."""
    raise NotImplementedError


@hookspec
def engine_platforms() -> Sequence[Entry]:
    """Devices the engine runs on. Contract: `core.contracts.Platform`."""
    raise NotImplementedError


@hookspec
def engine_executors() -> Sequence[Entry]:
    """Ways of running workers. Contract: `core.contracts.Executor`."""
    raise NotImplementedError


@hookspec
def engine_workers() -> Sequence[Entry]:
    """What computes on one device, made by executors. Contract: `core.contracts.Worker`."""
    raise NotImplementedError


@hookspec
def engine_models() -> Sequence[Entry]:
    """Model architectures, named as in `config.json`. Contract: `core.contracts.Architecture`."""
    raise NotImplementedError


@hookspec
def engine_weight_loaders() -> Sequence[Entry]:
    """Readers of checkpoints (`--load-format`). Contract: `core.contracts.WeightLoader`."""
    raise NotImplementedError


@hookspec
def engine_quant_methods() -> Sequence[Entry]:
    """Quantization methods (`--quantization`). Contract: `core.contracts.QuantMethod`."""
    raise NotImplementedError


@hookspec
def engine_attention_backends() -> Sequence[Entry]:
    """Attention over paged keys and values (`--attention-backend`).

    Contract: `core.contracts.AttentionBackend`.
    """
    raise NotImplementedError


@hookspec
def engine_op_impls() -> Sequence[Entry]:
    """Implementations of ops, named `op` or `op/variant`.

    Contract: the op's reference in `core.models.ops.reference`.
    """
    raise NotImplementedError


@hookspec
def engine_logits_processors() -> Sequence[Entry]:
    """Changes to logits before a token is chosen. Contract: `core.contracts.LogitsProcessor`."""
    raise NotImplementedError


@hookspec
def engine_runners() -> Sequence[Entry]:
    """What models are run for (`--runner`). Contract: `core.contracts.Runner`."""
    raise NotImplementedError


@hookspec
def engine_poolers() -> Sequence[Entry]:
    """What of a prompt's hidden states stands for it (`--pooler-config`).

    Contract: `core.contracts.Pooler`.
    """
    raise NotImplementedError


@hookspec
def engine_speculators() -> Sequence[Entry]:
    """Ways of guessing tokens (`--speculative-config`'s `method`).

    Contract: `core.contracts.Speculator`.
    """
    raise NotImplementedError


@hookspec
def engine_kv_connectors() -> Sequence[Entry]:
    """Places that cached blocks go to and come from (`--kv-transfer-config`).

    Contract: `core.contracts.KVConnector`.
    """
    raise NotImplementedError


@hookspec
def engine_kv_eviction() -> Sequence[Entry]:
    """Orders in which cached blocks go (`--kv-eviction-policy`).

    Contract: `core.contracts.KVEviction`.
    """
    raise NotImplementedError


@hookspec
def engine_scheduling_policies() -> Sequence[Entry]:
    """Orders in which requests run (`--scheduling-policy`).

    Contract: `core.contracts.SchedulingPolicy`.
    """
    raise NotImplementedError


@hookspec
def engine_tokenizers() -> Sequence[Entry]:
    """Tokenizers (`--tokenizer-mode`). Contract: `core.contracts.Tokenizer`."""
    raise NotImplementedError


@hookspec
def engine_chat_renderers() -> Sequence[Entry]:
    """Ways of turning messages into prompts. Contract: `core.contracts.ChatRenderer`."""
    raise NotImplementedError


@hookspec
def engine_tool_parsers() -> Sequence[Entry]:
    """How model families write tool calls (`--tool-call-parser`).

    Contract: `core.contracts.ToolFormat`.
    """
    raise NotImplementedError


@hookspec
def engine_reasoning_parsers() -> Sequence[Entry]:
    """How model families tell thoughts from answers (`--reasoning-parser`).

    Contract: `core.contracts.ReasoningFormat`.
    """
    raise NotImplementedError


@hookspec
def engine_grammar_backends() -> Sequence[Entry]:
    """Libraries that hold outputs to a schema, regex or grammar.

    Contract: `core.contracts.GrammarBackend`.
    """
    raise NotImplementedError


@hookspec
def engine_servers() -> Sequence[Entry]:
    """Servers that carry route groups. Contract: `core.contracts.Server`."""
    raise NotImplementedError


@hookspec
def engine_routes() -> Sequence[Entry]:
    """HTTP route groups.

    From third parties only when the plugin is named. Contract: `core.contracts.RouteGroup`.
    """
    raise NotImplementedError


@hookspec
def engine_metric_sinks() -> Sequence[Entry]:
    """Takers of measurements. Contract: `core.contracts.MetricSink`."""
    raise NotImplementedError


@hookspec
def engine_commands() -> Sequence[Entry]:
    """Subcommands of `engine`. Contract: `core.contracts.Command`."""
    raise NotImplementedError


# --- lifecycle ------------------------------------------------------------------------------------


@hookspec
def engine_options() -> Sequence[Option]:
    """Options of the plugin: shown under its name in `--help`, read from flags, config file and
    keywords.
    """
    raise NotImplementedError


@hookspec
def engine_find_model(model: str, config: EngineConfig) -> ModelSource | str | None:
    """Recognise a model name (`scripted:`, a folder, a hub id) and say what it is; None if not
    yours.

    A string is another name for it, a folder for example, which is asked for instead.

    Plugins are asked in the order of their names, those with `tryfirst` before and `trylast` after
    them; the first answer counts.
    """
    raise NotImplementedError


@hookspec
def engine_resolve(decisions: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """See every automatic decision once, by name, before anything is built; return those to change.

    A change is logged with the plugin's name. Two plugins that change one decision differently stop
    start-up.
    """
    raise NotImplementedError


@hookspec
def engine_admission_extensions(
    config: EngineConfig, registry: Registry
) -> Sequence[AdmissionExtension]:
    """What features that the configuration switches on do with requests before the engine sees
    them.
    """
    raise NotImplementedError


@hookspec
def engine_scheduler_extensions(
    config: EngineConfig, registry: Registry
) -> Sequence[SchedulerExtension]:
    """Scheduler halves of features that the configuration switches on.

    `registry.shared` holds what the halves of a feature share where they are in one process.
    """
    raise NotImplementedError


@hookspec
def engine_runner_extensions(config: EngineConfig, registry: Registry) -> Sequence[RunnerExtension]:
    """Worker halves of features that the configuration switches on."""
    raise NotImplementedError


@hookspec
def engine_process_start(process: str) -> None:
    """A process of the engine has loaded its plugins; `process` is "main", "engine" or "worker"."""
    raise NotImplementedError


@hookspec
def engine_add_hooks() -> Sequence[Any]:
    """Hook specification modules a plugin adds, so that other plugins can extend it.

    Their names begin with `engine_`, as all do. The plugin asks them with `registry.ask(hook,
    **arguments)` wherever it is given the registry.
    """
    raise NotImplementedError
