"""The facts of models: what a layer is, keeps and is called, and how a checkpoint's config is read."""
