"""The report of a measurement of head interaction: one row for each layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.attention.heads.interaction.coalition_tests import Comparison
from diabat.attention.heads.interaction.measure import LayerInteraction
from diabat.studies.report import Column, Report, Row


@dataclass(frozen=True)
class InteractionReport(Report):
    """How heads interact, by layer.

    Attributes:
        rows: One for each layer; keys as in ``definitions()``.
        model: The model as it was named.
        texts: How many texts were measured.
        aggregation: How the tokens make ρ.
        coalitions: How coalitions were found.
    """

    model: str = ""
    texts: int = 0
    aggregation: str = "concatenated"
    coalitions: str = ""

    labels = (Column("layer", "position of the block", "layer"),)
    columns = (
        Column("heads", "query heads H, the players", "heads"),
        Column("tokens", "tokens that count: visible, with a target", "tokens"),
        Column("cross_entropy", "mean cross-entropy of these tokens, in nats"),
        Column("gamma", "Γ = |G - I|_F with G = ω ∘ ρ", "Γ"),
        Column("invariant_gamma", "|ω' ∘ ρ' - I|_F of the couplings of what the heads write and of the gradient "
               "that they can reach; the same in every basis of a head", "Γ'"),
        Column("mean_omega", "mean |ω_ij| of pairs, cosine of the output slices", "|ω|"),
        Column("mean_rho", "mean ρ_ij of pairs, cosine of the gradients at the head outputs", "ρ"),
        Column("total_correlation", "Gaussian total correlation of the head outputs in nats, bias of the sample "
               "subtracted; null if there are not more tokens than features", "TC"),
        Column("free_riding", "largest I(Z_i; Z_<i) of a head, in nats", "most free\nriding"),
        Column("free_rider", "the head it belongs to"),
        Column("diagonal_correlation", "mean correlation of equal features of two heads; depends on their bases",
               "equal\nfeatures"),
        Column("coalition_sizes", "number of heads of each coalition", "coalitions",
               show=lambda row: "+".join(map(str, row["coalition_sizes"]))),
        Column("labels", "coalition of each head, found in the batches of even position"),
        Column("advantage", "probability that a pair within coalitions couples more than one between them, on the "
               "batches of odd position", "within >\nbetween"),
        Column("p_value", "of Mann-Whitney, one-sided, on the batches of odd position", "p held-out"),
        Column("omega", "ω, [H, H]"),
        Column("rho", "ρ, [H, H]"),
        Column("G", "ω ∘ ρ, [H, H]"),
        Column("written", "ω', cosines of what the heads write, [H, H]"),
        Column("reachable", "ρ', cosines of the gradients that the heads can reach, [H, H]"),
        Column("redundancy", "I(Z_i; all other heads) of each head, in nats"),
    )  # fmt: skip

    @property
    def title(self) -> str:
        """Line above the table."""
        return f"Head interaction of {self.model}, {self.texts} texts"

    @classmethod
    def row(cls, found: LayerInteraction, labels: Tensor, tested: Comparison) -> Row:
        """Row of one layer.

        Args:
            found: The measurement of all batches.
            labels: Coalition of every head, int64 [H].
            tested: Its test on held-out batches.
        """
        heads = len(found.omega)
        i, j = torch.triu_indices(heads, heads, offset=1)
        row: Row = {
            "layer": found.layer,
            "heads": heads,
            "tokens": found.tokens,
            "cross_entropy": found.cross_entropy,
            "gamma": found.gamma,
            "invariant_gamma": found.invariant_gamma,
            "mean_omega": float(found.omega[i, j].abs().mean()),
            "mean_rho": float(found.rho[i, j].mean()),
            "diagonal_correlation": float(found.diagonal_correlation[i, j].mean()),
            "coalition_sizes": torch.bincount(labels).tolist(),
            "labels": labels.tolist(),
            "advantage": tested.advantage,
            "p_value": tested.p_value,
            **{name: matrix.tolist() for name, matrix in cls.matrices(found).items()},
        }
        if found.information is not None:
            most = int(found.information.free_riding.argmax())
            row |= {
                "total_correlation": found.information.total_correlation,
                "free_riding": float(found.information.free_riding[most]),
                "free_rider": most,
                "redundancy": found.information.redundancy.tolist(),
            }
        return row

    @staticmethod
    def matrices(found: LayerInteraction) -> Mapping[str, Tensor]:
        """The matrices of a layer."""
        names = ("omega", "rho", "written", "reachable")
        return {**{name: vars(found)[name] for name in names}, "G": found.G}
