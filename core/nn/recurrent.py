"""Recurrent parts of layers by their facts: the one place that knows which module a spec stands
for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from core.nn.gated_conv import GatedConv
from core.nn.gated_delta import GatedDelta
from core.nn.lightning import Lightning
from core.nn.mamba import Mamba
from core.nn.mamba2 import Mamba2
from core.nn.rg_lru import RgLru
from core.spec.recurrent import (
    GatedConvSpec,
    GatedDeltaSpec,
    LightningSpec,
    Mamba2Spec,
    MambaSpec,
    RgLruSpec,
)

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.nn.weights import WeightMap
    from core.spec.recurrent import RecurrentSpec

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
