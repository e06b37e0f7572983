"""Cached blocks as objects in a bucket, by obstore."""
