"""Plugin of the fake GPU; loaded by path, with the classes that tests import."""

from tests.builtin_plugins.platforms.fake_gpu import engine_platforms  # noqa: F401 - the hook
