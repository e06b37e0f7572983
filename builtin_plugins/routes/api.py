"""What features provide to routes, with the promises of `core.api`."""

from builtin_plugins.routes.variants import Call, Variant, VariantSource, variant_sources

__all__ = ["Call", "Variant", "VariantSource", "variant_sources"]
