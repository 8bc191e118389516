"""What a report shows of ``refine``: the total variation before and after its sweeps."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from diabat.samplers import Sampler
from diabat.samplers.refine import RefineSampler
from diabat.studies.fidelity import FidelityReport, fidelity_report, sk
from diabat.studies.fidelity.states import states_of_samples, total_variation
from diabat.testing import Mutant, ReferenceSampler, brute_force_states, scaled

REFERENCE = ReferenceSampler(analytic=True)
(SK,) = sk([0.6], num_spins=5, instances=3, queries=2)
READS = 4000


def hot(base: Sampler) -> Sampler:
    """Reads at half of every field and coupling."""
    return Mutant(base, "hot", problem=lambda ising: scaled(ising, 0.5, 0.5))


@pytest.fixture(scope="module")
def report() -> FidelityReport:
    backends: dict[str, Sampler] = {
        "hot": hot(ReferenceSampler()),
        "refined": RefineSampler(hot(ReferenceSampler()), sweeps=4),
        "kept": RefineSampler(hot(ReferenceSampler()), sweeps=0),
    }
    return fidelity_report(backends, [SK], num_reads=READS, seed=3, reference=REFERENCE)


def test_the_reads_before_the_sweeps_are_scored(report: FidelityReport) -> None:
    bare, refined, kept = report.rows
    seed = RefineSampler(hot(REFERENCE)).sample(SK.ising, READS, seed=3).info["base"]["seed"]
    reads = hot(ReferenceSampler()).sample(SK.ising, READS, seed=seed)
    want = float(total_variation(states_of_samples(reads), brute_force_states(SK.ising)).mean())
    assert refined["tv_base"] == pytest.approx(want, abs=1e-12)
    assert kept["tv"] == kept["tv_base"] == refined["tv_base"]
    # Another draw of the same law; the tv of 6 problems of 4000 reads scatters by about 0.003.
    assert bare["tv"] == pytest.approx(refined["tv_base"], abs=0.015)
    assert bare["tv"] > 0.1
    assert refined["tv"] == pytest.approx(refined["tv_floor"], rel=0.3)
    assert (bare["tv_base"], bare["base"], refined["base"]) == (None, None, "hot")


def test_json_and_table_show_both(report: FidelityReport) -> None:
    content = json.loads(report.to_json())
    assert "refine" in content["definitions"]["tv_base"]
    row: dict[str, Any] = report.rows[1]
    for narrow, width in ((False, 170), (True, 80)):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(report.table(narrow=narrow))
        text = console.export_text()
        assert f"{row['tv_base']:.3f}→{row['tv']:.3f}" in text
        assert "base→TV" in text
        assert "…" not in text


def test_other_backends_keep_their_header() -> None:
    plain = fidelity_report({"r": REFERENCE}, [SK], reference=REFERENCE)
    assert all("→" not in str(column.header) for column in plain.table().columns)
