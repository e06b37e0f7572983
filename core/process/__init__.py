"""The engine's processes: how one is started, how they talk, how each learns that the other has
ended.
"""
