"""Learned couplings J of one run, or of several that differ in their seed, by the distance of the coupled keys."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from diabat.plots import Line, Panel

PANEL = (4.6, 3.5)
"""Width and height of a panel in inches."""


@dataclass(frozen=True)
class CouplingsAtDistance:
    """J at one distance d = |j - k|: means, and standard deviations of the mean over the others, None of a single one.

    ``pairs`` is the number of J of a run, of each chosen layer and head; ``negative`` is the share of J < 0 among all
    pairs and runs, ``largest`` their largest |J|.
    """

    distance: int
    pairs: int
    mean: float
    deviation_of_pairs: float | None
    deviation_of_runs: float | None
    negative: float
    largest: float


@dataclass(frozen=True, eq=False)
class LearnedCouplings:
    """J of R runs; L layers, H heads, P pairs of slots j < k.

    Attributes:
        attention: What the attention is, with its mode.
        distance: abs(j - k) of each pair, int64 [P].
        couplings: J_jk, float32 [R, L, H, P].
    """

    attention: str
    distance: Tensor
    couplings: Tensor

    @property
    def layout(self) -> str:
        """What runs that are compared share; pairs and the largest distance determine the window."""
        _, layers, heads, pairs = self.couplings.shape
        reach = int(self.distance.max())
        return f"{self.attention}, {layers} x {heads} heads of {pairs} pairs within distance {reach}"

    def by_distance(self, layer: int | None = None, head: int | None = None) -> list[CouplingsAtDistance]:
        """J at each distance, nearest first, of one layer and head, or of all for None."""
        layers, heads = (slice(None) if i is None else slice(i, i + 1) for i in (layer, head))
        J = self.couplings[:, layers, heads].double()
        return [_at(d, J[..., self.distance == d].flatten(1)) for d in self.distance.unique().tolist()]


def _at(distance: int, J: Tensor) -> CouplingsAtDistance:
    """J of a distance, float64 [R, N]."""
    return CouplingsAtDistance(
        distance=distance,
        pairs=J.shape[1],
        mean=float(J.mean()),
        deviation_of_pairs=_deviation(J.mean(0)),
        deviation_of_runs=_deviation(J.mean(1)),
        negative=float((J < 0).double().mean()),
        largest=float(J.abs().max()),
    )


def _deviation(values: Tensor) -> float | None:
    return float(values.std()) if len(values) > 1 else None


def coupling_panels(
    learned: LearnedCouplings, *, layer: int | None = None, head: int | None = None
) -> list[Panel]:
    """J against distance, a panel for each layer and a line for each head; ``layer`` or ``head`` None shows all.

    A dot is one pair, as the mean over runs; a line is the mean over pairs, with σ over runs as error bars.
    """
    _, layers, heads, _ = learned.couplings.shape
    panels = []
    for i in range(layers) if layer is None else [layer]:
        drawn = []
        for look, h in enumerate(range(heads) if head is None else [head]):
            rows = learned.by_distance(i, h)
            x, y = [float(row.distance) for row in rows], [row.mean for row in rows]
            spread = [row.deviation_of_runs for row in rows]
            bars = [value for value in spread if value is not None] or None
            dots = {"linestyle": "", "marker": ".", "markersize": 4, "alpha": 0.45, "zorder": 2.5}
            pairs = learned.couplings[:, i, h].mean(0)
            drawn += [
                Line(learned.distance.numpy(), pairs.numpy(), look=look, style=dots),
                Line(x, y, f"head {h}" if heads > 1 else "", look, bars),
            ]
        ends = [1.0, float(learned.distance.max())]
        zero = Line(ends, [0, 0], style={"color": "0.5", "marker": "", "linewidth": 0.9, "zorder": 2})
        settings = {"xlabel": "distance |j - k|", "ylabel": "$J_{jk}$", "title": f"layer {i}"}
        panels.append(Panel([zero, *drawn], settings=settings))
    return panels
