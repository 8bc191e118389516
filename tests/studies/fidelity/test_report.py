"""The report: right for samplers whose errors are known, clear where it cannot compare."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from diabat.ising import Ising, pack_couplings
from diabat.samplers import Capabilities, Sampler
from diabat.studies.fidelity import (
    DEFINITIONS,
    Ensemble,
    FidelityError,
    FidelityReport,
    ferromagnet,
    fidelity_report,
    from_attention,
    plot_fidelity,
    sk,
)
from diabat.testing import Mutant, RecorderSampler, ReferenceSampler, WeightedSampler, mutants, scaled

REFERENCE = ReferenceSampler(analytic=True)
SMALL: dict[str, Any] = {"num_spins": 4, "instances": 3, "queries": 2}


def independent(base: Sampler) -> Sampler:
    return Mutant(base, "J = 0", problem=lambda ising: scaled(ising, 1, 0))


def one_row(backend: Sampler, ensemble: Ensemble, **options: Any) -> dict[str, Any]:
    (row,) = fidelity_report({"b": backend}, [ensemble], reference=REFERENCE, **options).rows
    assert row["refused"] is None
    return row


@pytest.fixture(scope="module")
def attention() -> Ensemble:
    generator = torch.Generator().manual_seed(0)
    h = 0.4 * torch.randn(6, 2, 5, 5, generator=generator)
    J = pack_couplings(0.3 * torch.randn(2, 1, 10, generator=generator), 5)
    return from_attention(h, J, torch.ones(5, 5, dtype=torch.bool).tril(), windows=4, num_rows=3)


def test_exact_backend_has_no_error() -> None:
    row = one_row(REFERENCE, sk([0.8], **SMALL)[0])
    for key in ("marginal_max", "pair_max", "tv", "kl", "attention_max"):
        assert row[key] == pytest.approx(0, abs=1e-12), key
    assert row["capture"] == pytest.approx(1, abs=1e-12)
    assert (row["beta_h"], row["beta_J"]) == pytest.approx((1, 1), abs=1e-8)
    assert row["kind"] == "analytic"
    assert row["ess"] is row["tv_floor"] is row["num_reads"] is None


def test_backend_named_exact_agrees_with_the_oracle(attention: Ensemble) -> None:
    import diabat

    row = one_row(diabat.sampler("exact"), attention)
    assert row["marginal_max"] < 1e-6
    assert row["tv"] < 1e-6
    assert row["capture"] > 0.999
    default = fidelity_report({"b": REFERENCE}, [attention]).rows[0]
    assert default["marginal_max"] < 1e-6


def test_independent_spins_capture_nothing() -> None:
    row = one_row(independent(REFERENCE), sk([0.8], **SMALL)[0])
    assert row["capture"] == pytest.approx(0, abs=1e-12)
    assert row["marginal_mean"] == pytest.approx(row["independent_error"])
    assert row["mean_field_error"] is not None


def test_perfect_reads_sit_at_the_floor() -> None:
    # N = 4000 reads of 36 problems: floors are means over problems; fixed seed, so no false alarm.
    (ensemble,) = sk([0.6], num_spins=5, instances=6, queries=6)
    row = one_row(ReferenceSampler(), ensemble, num_reads=4000)
    assert row["num_reads"] == 4000
    assert row["ess"] == pytest.approx(4000)
    assert row["tv"] == pytest.approx(row["tv_floor"], rel=0.15)
    assert row["kl"] == pytest.approx(row["kl_floor"], rel=0.15)
    assert row["marginal_mean"] == pytest.approx(row["marginal_floor"], rel=0.25)
    assert row["capture"] == pytest.approx(row["capture_ceiling"], abs=0.1)


def test_wrong_temperature_is_seen_in_every_metric() -> None:
    # beta x 1.05, N = 20,000 reads of 12 problems; the fit is within 4.9 errors (alpha 1e-6) of 1.05.
    hot = mutants(ReferenceSampler())["beta_times_1.05"]
    (ensemble,) = sk([0.8], num_spins=5, instances=4, queries=3)
    row = one_row(hot, ensemble, num_reads=20_000)
    for name in ("beta_h", "beta_J"):
        assert row[name] == pytest.approx(1.05, abs=4.9 * row[f"{name}_error"])
        assert row[name] > 1 + 4.9 * row[f"{name}_error"]
    assert row["kl"] > 1.5 * row["kl_floor"]


def test_weighted_reads_count_by_their_weights() -> None:
    (ensemble,) = sk([0.8], **SMALL)
    row = one_row(WeightedSampler(ReferenceSampler()), ensemble, num_reads=4000)
    assert 2000 < row["ess"] < 3990
    assert abs(row["beta_J"] - 1) < 4.9 * row["beta_J_error"]


def test_masks_and_shared_couplings_of_attention(attention: Ensemble) -> None:
    assert one_row(REFERENCE, attention)["tv"] < 1e-6
    row = one_row(ReferenceSampler(), attention, num_reads=2000)
    assert row["queries"] == 4 * 2 * 3
    assert row["tv"] == pytest.approx(row["tv_floor"], rel=0.3)
    assert row["attention_max"] < 0.1


def test_mean_field_is_scored_by_its_product_distribution() -> None:
    import diabat

    row = one_row(diabat.sampler("mean_field"), ferromagnet([0.6], num_spins=4, queries=6)[0])
    assert row["capture"] == pytest.approx(row["mean_field_capture"], abs=1e-6)
    assert 0 < row["tv"] < 1
    assert row["pair_mean"] is None


def test_reads_and_seed_reach_the_backend() -> None:
    recorder = RecorderSampler(ReferenceSampler())
    ensembles = sk([0.2, 0.4], **SMALL)
    first = fidelity_report({"r": recorder}, ensembles, num_reads=64, seed=11, reference=REFERENCE)
    drawn = [call for call in recorder.calls if call.method == "sample"]
    assert {(call.num_reads, call.seed) for call in drawn} == {(64, 11)}
    again = fidelity_report({"r": recorder}, ensembles, num_reads=64, seed=11, reference=REFERENCE)
    for a, b in zip(first.rows, again.rows, strict=True):
        assert {**a, "us_per_query": 0} == {**b, "us_per_query": 0}


class _Quadratic(ReferenceSampler):
    name = "quadratic"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(**{**super().capabilities.__dict__, "three_body": False})


def test_refusal_is_a_row() -> None:
    (plain,) = sk([0.4], **SMALL)
    K = torch.zeros(4, 4, 4, dtype=torch.float64)
    cubic = Ensemble("cubic", 0.4, Ising(plain.ising.fields, plain.ising.couplings, three_body=K))
    report = fidelity_report({"q": _Quadratic(), "r": REFERENCE}, [cubic], num_reads=8, reference=REFERENCE)
    assert "fields and couplings only" in report.rows[0]["refused"]
    assert report.rows[1]["refused"] is None
    assert "refused" in _text(report)
    json.loads(report.to_json())


def test_no_exact_answer_is_refused_before_any_backend_runs() -> None:
    recorder = RecorderSampler(ReferenceSampler())
    ensembles = [*sk([0.1], **SMALL), *sk([0.1], num_spins=20, instances=1, queries=1)]
    with pytest.raises(FidelityError, match=r"'SK' at strength 0\.1 with 20 spins has no exact answer"):
        fidelity_report({"r": recorder}, ensembles, reference=REFERENCE)
    assert recorder.calls == []


@pytest.mark.parametrize(
    ("backends", "ensembles", "options", "message"),
    [
        ({}, sk([0.1]), {}, "backends: expected at least one"),
        ({"r": REFERENCE}, [], {}, "ensembles: expected at least one"),
        ({"r": REFERENCE}, sk([0.1]), {"num_reads": 0}, "num_reads: expected"),
        (
            {"r": REFERENCE},
            sk([0.1]),
            {"reference": ReferenceSampler()},
            "reference: expected an exact sampler",
        ),
    ],
)
def test_bad_arguments(
    backends: dict[str, Sampler], ensembles: list[Ensemble], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fidelity_report(backends, ensembles, **options)


def _text(report: FidelityReport, *, width: int = 170, narrow: bool = False) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(report.table(narrow=narrow))
    return console.export_text()


@pytest.fixture(scope="module")
def report() -> FidelityReport:
    backends: dict[str, Sampler] = {
        "exact": REFERENCE,
        "reads": ReferenceSampler(),
        "J = 0": independent(REFERENCE),
    }
    ensembles = [*sk([0.2, 0.6, 1.0], **SMALL), *ferromagnet([0.4], num_spins=4, queries=6)]
    return fidelity_report(backends, ensembles, num_reads=200, reference=REFERENCE)


def test_rows_json_and_definitions_agree(report: FidelityReport) -> None:
    content = json.loads(report.to_json())
    assert len(content["rows"]) == len(report.rows) == 12
    assert set(DEFINITIONS) <= set(content["rows"][0])
    assert content["num_reads"] == 200
    broken = FidelityReport([{**report.rows[0], "kl": float("inf")}], 1, 0)
    assert json.loads(broken.to_json())["rows"][0]["kl"] is None


def test_table_has_one_row_each_and_fits(report: FidelityReport) -> None:
    wide, narrow = _text(report), _text(report, width=80, narrow=True)
    for text in (wide, narrow):
        assert sum("SK" in line or "ferromagnet" in line for line in text.splitlines()) == 12
        assert "…" not in text
        assert "capture" in text
    assert "-0.00" not in wide


def test_figure_is_written(report: FidelityReport, tmp_path: Path) -> None:
    for suffix, magic in ((".png", b"\x89PNG"), (".pdf", b"%PDF")):
        path = plot_fidelity(report, tmp_path / f"f{suffix}")
        assert path.read_bytes().startswith(magic)
    plot_fidelity(report, tmp_path / "capture.svg", metric="capture")
    with pytest.raises(ValueError, match="got 'marginal', which has none"):
        plot_fidelity(report, tmp_path / "x.png", metric="marginal")


def test_progress_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    fidelity_report({"r": REFERENCE}, sk([0.2], **SMALL), progress=True, reference=REFERENCE)
    out, err = capsys.readouterr()
    assert out == ""
    assert "exact answers" in err


def test_a_single_strength_is_drawn_as_labelled_bars(tmp_path: Path, attention: Ensemble) -> None:
    backends = {"exact": REFERENCE, "independent": independent(REFERENCE)}
    report = fidelity_report(backends, [attention], reference=REFERENCE)
    text = plot_fidelity(report, tmp_path / "bars.svg").read_text()
    assert "<!-- independent -->" in text
    assert f"<!-- {report.rows[1]['marginal_mean']:.2g} -->" in text
    assert "<!-- coupling strength g -->" not in text
    plot_fidelity(report, tmp_path / "capture.png", metric="capture")


def sentence_row(name: str, error: float | None, floor: float | None = None) -> dict[str, Any]:
    refused = "too large." if error is None else None
    return {"backend": name, "marginal_mean": error, "marginal_floor": floor, "refused": refused}


def test_the_summary_ranks_by_error_and_names_read_noise() -> None:
    rows = [
        sentence_row("good", 0.01),
        sentence_row("reads", 0.012, 0.010),
        sentence_row("bad", 0.1),
        sentence_row("small", 0.001),
        sentence_row("good", 0.03),
        sentence_row("reads", 0.013, 0.010),
        sentence_row("bad", 0.3),
        sentence_row("small", None),
    ]
    assert FidelityReport(rows).summary() == (
        "Mean |ΔP| over all problems, best first: reads (0.013), good (0.02), bad (0.2). "
        "Within read noise: reads in 1 of 2 rows. Not ranked, as they refused some problems: small."
    )
    exact = FidelityReport([sentence_row("reads", 0.01, 0.01)]).summary()
    assert exact.endswith("Within read noise: reads in every row.")
