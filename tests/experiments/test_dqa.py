"""``experiments.dqa_fidelity``: its laws, and the first row of every section."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from experiments import dqa_fidelity as study
from experiments.dqa_fidelity import SECTIONS, answer, sk_problems, swept


def test_sweeps_keep_boltzmanns_law_and_lead_to_it() -> None:
    problems = sk_problems(6, 0.6, instances=2)
    torch.testing.assert_close(swept(problems.law, problems.ising, 1), problems.law, rtol=0, atol=1e-14)
    start = problems.simple["J = 0"]
    distances = [problems.distance(swept(start, problems.ising, k)) for k in (0, 1, 16)]
    assert distances[0] > distances[1] > 1e-3 > 1e-4 > distances[2]


def test_refinement_and_learned_anneals_are_nearer() -> None:
    problems = sk_problems(6, 0.6, instances=2)
    methods = ("J = 0", "5 ns, predicted", "5 ns + refine 4", "boltzmann-8")
    errors = [problems.error(answer(problems, name)) for name in methods]
    assert errors[0] > errors[1] > errors[2]
    assert errors[1] > errors[3]


@pytest.mark.filterwarnings("ignore::diabat.circuits.OutOfRangeWarning")
@pytest.mark.parametrize("name", SECTIONS)
def test_the_first_row_of_every_section(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "STRENGTHS", (0.3,))
    monkeypatch.setattr(study, "SIZES", (6,))
    title, row = next(SECTIONS[name]())
    assert title
    assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))
    if name == "refine":
        study.draw(name, [row], tmp_path)
        assert (tmp_path / "dqa-refine.png").exists()
