"""A journal of the scheduler's calls and plans, for exact replay (`--journal`)."""
