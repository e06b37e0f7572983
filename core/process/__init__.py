"""The engine's processes: how one is started, how they talk, how each learns that the other has ended."""

from core.process.channel import Channel
from core.process.messages import Beat, Failed, Stage, Start
from core.process.spawn import Child

__all__ = ["Beat", "Channel", "Child", "Failed", "Stage", "Start"]
