"""Recurrent parts of layers by their facts: the one place that knows which module a spec stands
for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from core.model_spec.recurrent import (
    GatedConvSpec,
    GatedDeltaSpec,
    LightningSpec,
    Mamba2Spec,
    MambaSpec,
    RgLruSpec,
)
from core.models.layers.gated_conv import GatedConv
from core.models.layers.gated_delta import GatedDelta
from core.models.layers.lightning import Lightning
from core.models.layers.mamba import Mamba
from core.models.layers.mamba2 import Mamba2
from core.models.layers.rg_lru import RgLru

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.recurrent import RecurrentSpec
    from core.models.layers.weights import WeightMap

Recurrent = Mamba | Mamba2 | GatedDelta | Lightning | GatedConv | RgLru
"""A module with `kv_spec` (what it keeps), `cache` (which `bind_kv` sets), and `forward(x, plan)`.
"""

_MODULES: Final[dict[type, Any]] = {
    MambaSpec: Mamba,
    Mamba2Spec: Mamba2,
    GatedDeltaSpec: GatedDelta,
    LightningSpec: Lightning,
    GatedConvSpec: GatedConv,
    RgLruSpec: RgLru,
}


def make_recurrent(
    spec: RecurrentSpec, hidden: int, prefix: str, context: BuildContext, weights: WeightMap
) -> Recurrent:
    """Return the module a spec describes, reading its tensors from `prefix`."""
    return _MODULES[type(spec)](spec, hidden, prefix, context, weights)  # type: ignore[no-any-return]
