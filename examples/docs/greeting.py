"""Adds a greeting before prompts, from the keyword `greeting`."""

from dataclasses import replace

from core.api import InvalidRequest, hookimpl


class Greetings:
    keywords = ("greeting",)

    def attach(self, context):
        self.read = context.read

    def prepare(self, request):
        greeting = request.plugin_fields["greeting"]
        if not isinstance(greeting, str):
            raise InvalidRequest("greeting", f"must be a text, not {greeting!r}.")
        begin = self.read(greeting, add_special_tokens=False)
        return replace(request, prompt_token_ids=[*begin.token_ids, *request.prompt_token_ids])


@hookimpl
def engine_admission_extensions(config, registry):
    return [Greetings()]
