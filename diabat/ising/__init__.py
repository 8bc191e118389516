r"""The problem every sampler solves: an Ising model with fields, couplings and optional three-body terms.

Law (temperature folded into the parameters):

    P(s) ∝ exp( c + Σ_j h_j s_j + Σ_{j<k} J_jk s_j s_k + Σ_{j<k<l} K_jkl s_j s_k s_l ),   s_j ∈ {-1, +1}

+1 means attend / in the coalition / active.  ``energy = -(exponent)``; the offset c, usually 0, only moves energies
and log Z.  dimod and D-Wave minimise +Σ h s + Σ J s s: :func:`from_bqm` and :func:`to_bqm` flip that sign.
"""

from __future__ import annotations

from diabat.ising.checks import IsingError
from diabat.ising.dimod_models import coupled_pairs as coupled_pairs
from diabat.ising.dimod_models import from_bqm, from_qubo, to_bqm
from diabat.ising.dimod_models import to_minimised as to_minimised
from diabat.ising.edges import Edges, pack_couplings, pack_three_body, pair_indices, triple_indices
from diabat.ising.model import Ising
from diabat.ising.model import flat_index as flat_index
from diabat.ising.model import without_autocast as without_autocast

__all__ = [
    "Edges",
    "Ising",
    "IsingError",
    "from_bqm",
    "from_qubo",
    "pack_couplings",
    "pack_three_body",
    "pair_indices",
    "to_bqm",
    "triple_indices",
]
