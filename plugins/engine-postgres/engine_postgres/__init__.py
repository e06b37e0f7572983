"""Stored responses in a PostgreSQL database."""
