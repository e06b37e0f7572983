"""`engine bench`: how fast it is, measured so that the figures can be believed."""
