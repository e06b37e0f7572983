"""The fake model with windows, found as `windowed:`."""

from core.api import hookimpl
from core.testing.fake_model import FakeConfig, fake_source


@hookimpl(tryfirst=True)
def engine_find_model(model, config):
    return fake_source(FakeConfig(window=20)) if model == "windowed:" else None
