"""Adds `engine hello`."""

from core.api import Entry, hookimpl


class Hello:
    """Greets one person."""

    help = "Greet a person."
    takes_engine_options = False

    def add_arguments(self, parser):
        parser.add_argument("name")

    def run(self, context):
        print(f"Hello, {context.args.name}.")
        return 0


@hookimpl
def engine_commands():
    return [Entry("hello", Hello, "greets a person")]
