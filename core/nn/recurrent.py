"""Recurrent parts of layers by their facts: the one place that knows which module a spec stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from core.nn.mamba import Mamba
from core.nn.mamba2 import Mamba2
from core.recurrent_spec import Mamba2Spec, MambaSpec

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.nn.weights import WeightMap
    from core.recurrent_spec import RecurrentSpec

Recurrent = Mamba | Mamba2
"""A module with `kv_spec` (what it keeps), `cache` (which `bind_kv` sets), and `forward(x, plan)`."""

_MODULES: Final[dict[type, Any]] = {MambaSpec: Mamba, Mamba2Spec: Mamba2}


def make_recurrent(
    spec: RecurrentSpec, hidden: int, prefix: str, context: BuildContext, weights: WeightMap
) -> Recurrent:
    """Return the module a spec describes, reading its tensors from `prefix`."""
    return _MODULES[type(spec)](spec, hidden, prefix, context, weights)  # type: ignore[no-any-return]
