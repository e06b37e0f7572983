"""The `scripted:` model: a model without files that answers with what it was asked, for tests and
plugin authors.
"""
