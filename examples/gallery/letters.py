"""Conversations as letters. Its higher priority selects it before other renderers."""

from core.api import Entry, InvalidRequest, hookimpl

EXAMPLES = [([{"role": "user", "content": "Hi."}], {}, "Dear assistant,\nHi.\n\nDear user,\n")]


class Letters:
    def __init__(self, tokenizer, source, config):
        pass

    def render(
        self,
        messages,
        *,
        tools=None,
        chat_template=None,
        add_generation_prompt=True,
        continue_final_message=False,
        template_kwargs=None,
    ):
        if not messages:
            raise InvalidRequest("messages", "is empty; give at least one message.")
        if tools:
            raise InvalidRequest("tools", "letters have no tools; remove them.")
        prompt = "\n\n".join(_letter(i, message) for i, message in enumerate(messages))
        if continue_final_message:
            return prompt
        return prompt + ("\n\nDear user,\n" if add_generation_prompt else "\n\n")


def _letter(index, message):
    for field in ("role", "content"):
        if not isinstance(message, dict) or not isinstance(message.get(field), str):
            raise InvalidRequest(f"messages[{index}].{field}", "must be a text.")
    reader = "user" if message["role"] == "assistant" else "assistant"
    return f"Dear {reader},\n{message['content']}"


@hookimpl
def engine_chat_renderers():
    return [Entry("letters", Letters, "conversations as letters", priority=10)]
