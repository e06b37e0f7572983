"""Short names for models: `echo:` is the scripted one."""

from core.api import hookimpl

NICKNAMES = {"echo:": "scripted:"}
EXAMPLE_MODELS = tuple(NICKNAMES)


@hookimpl
def engine_find_model(model, config):
    return NICKNAMES.get(model)
