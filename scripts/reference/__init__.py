"""Reference pages and help texts, generated from the sources they describe."""
