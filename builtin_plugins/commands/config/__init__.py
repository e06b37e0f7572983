"""The plugin with `engine config`."""
