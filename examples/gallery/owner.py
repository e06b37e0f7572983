"""`engine owner KIND NAME`: the plugin that brings an entry."""

from core.api import Entry, hookimpl

EXAMPLES = [(["executors", "uni"], "kernel\n"), (["executors", "nothing"], "none\n")]


class Owner:
    help = "Print the plugin that provides an entry."
    takes_engine_options = False

    def add_arguments(self, parser):
        parser.add_argument("kind")
        parser.add_argument("name")

    def run(self, context):
        entries = context.registry.entries(context.args.kind)
        found = [each.plugin.name for each in entries if each.entry.name == context.args.name]
        print(*(found or ["none"]))
        return 0


@hookimpl
def engine_commands():
    return [Entry("owner", Owner, "prints the plugin that provides an entry")]
