"""The plugin file that tests select; its classes are those the test imports."""

from tests.core.worker.recording_extension import engine_runner_extensions  # noqa: F401 - the hook
