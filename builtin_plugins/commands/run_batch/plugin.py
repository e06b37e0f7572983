"""`engine run-batch`: OpenAI's batch files, without a server."""

from core.api import Entry, hookimpl


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the command."""
    target = "builtin_plugins.commands.run_batch.command:RunBatch"
    return [Entry("run-batch", target, "answer the requests of a file")]
