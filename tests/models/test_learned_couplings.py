"""Learned couplings by the distance of keys, against sums written out."""

from __future__ import annotations

from statistics import fmean, stdev

import numpy as np
import pytest
import torch

from diabat.lab.models.learned_couplings import LearnedCouplings, coupling_panels

DISTANCE = torch.tensor([1, 2, 3, 1, 2, 1])  # of j < k among four slots, in row-major order


def found(runs: int = 3, layers: int = 2, heads: int = 2) -> LearnedCouplings:
    random = torch.Generator().manual_seed(0)
    return LearnedCouplings("h+J", DISTANCE, torch.randn(runs, layers, heads, 6, generator=random))


@pytest.mark.parametrize(("layer", "head"), [(None, None), (1, None), (None, 0), (1, 0)])
def test_each_distance_has_its_pairs(layer: int | None, head: int | None) -> None:
    made = found()
    for row in made.by_distance(layer, head):
        runs = [
            [
                float(made.couplings[r, i, h, p])
                for i in ((0, 1) if layer is None else (layer,))
                for h in ((0, 1) if head is None else (head,))
                for p in range(6)
                if DISTANCE[p] == row.distance
            ]
            for r in range(3)
        ]
        every = [J for run in runs for J in run]
        assert row.pairs == len(runs[0])
        assert row.mean == pytest.approx(fmean(every))
        assert row.deviation_of_runs == pytest.approx(stdev(map(fmean, runs)))
        if row.pairs > 1:
            assert row.deviation_of_pairs == pytest.approx(stdev(map(fmean, zip(*runs, strict=True))))
        assert row.negative == sum(J < 0 for J in every) / len(every)
        assert row.largest == max(map(abs, every))
    assert [row.distance for row in made.by_distance()] == [1, 2, 3]


def test_one_pair_and_one_run_have_no_deviation() -> None:
    nearest, _, farthest = found(runs=1).by_distance(0, 1)
    assert nearest.deviation_of_runs is None
    assert nearest.deviation_of_pairs is not None
    assert farthest.deviation_of_pairs is None


def test_figures_have_a_panel_for_each_layer_and_a_line_for_each_head() -> None:
    made = found()
    first, _ = coupling_panels(made)
    assert [line.label for line in first.lines if line.label] == ["head 0", "head 1"]
    (panel,) = coupling_panels(made, layer=1, head=0)
    _, dots, line = panel.lines
    rows = made.by_distance(1, 0)
    assert [*line.y] == [row.mean for row in rows]
    assert line.errors is not None
    assert [*line.errors] == [row.deviation_of_runs for row in rows]
    np.testing.assert_allclose(np.asarray(dots.y, dtype=float), made.couplings[:, 1, 0].mean(0), rtol=1e-6)
    assert coupling_panels(found(runs=1))[0].lines[2].errors is None
