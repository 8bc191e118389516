"""The fidelity report: right for samplers whose errors are known, clear where it cannot compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import RecorderSampler, scaled
from mutants import mutant, mutants

from diabat.ising import Ising, pack_couplings
from diabat.lab.config.schema import FidelityOptions
from diabat.lab.studies.ensembles import Ensemble, ferromagnet, from_attention, sk, tokens
from diabat.lab.studies.fidelity import FidelityReport, fidelity_report
from diabat.report import formatted
from diabat.samplers import Capabilities, Sampler, sampler
from diabat.testing import ReferenceSampler

REFERENCE = ReferenceSampler(analytic=True)
SMALL: dict[str, Any] = {"num_spins": 4, "instances": 3, "queries": 2}


def independent(base: Sampler) -> Sampler:
    return mutant(base, "J = 0", problem=lambda ising: scaled(ising, 1, 0))


def one_row(backend: Sampler, ensemble: Ensemble, **options: Any) -> dict[str, Any]:
    (row,) = fidelity_report({"b": backend}, [ensemble], **options).rows
    assert row["refused"] is None
    return row


@pytest.fixture(scope="module")
def attention() -> Ensemble:
    generator = torch.Generator().manual_seed(0)
    h = 0.4 * torch.randn(6, 2, 5, 5, generator=generator)[[0, 2, 3, 5]]
    J = pack_couplings(0.3 * torch.randn(2, 1, 10, generator=generator), 5)
    return from_attention(Ising(h, J, torch.ones(5, 5, dtype=torch.bool).tril()))


def test_exact_backend_has_no_error() -> None:
    row = one_row(REFERENCE, sk([0.8], **SMALL)[0])
    for key in ("marginal_max", "pair_mean", "tv", "attention_mean"):
        assert row[key] == pytest.approx(0, abs=1e-12), key
    assert row["capture"] == pytest.approx(1, abs=1e-12)
    assert (row["beta_h"], row["beta_J"]) == pytest.approx((1, 1), abs=1e-8)
    assert row["tv_floor"] is row["marginal_floor"] is row["num_reads"] is None


def test_pairs_of_a_sampled_backend_are_those_of_its_reads() -> None:
    """N = 10,000: a correlation has a standard error of at most 0.01."""
    row = one_row(ReferenceSampler(), sk([0.8], **SMALL)[0], num_reads=10_000)
    assert 0 < row["pair_mean"] < 0.03


def test_backend_named_exact_agrees_with_the_oracle(attention: Ensemble) -> None:
    for row in (one_row(sampler("exact"), attention), one_row(REFERENCE, attention)):
        assert row["marginal_max"] < 1e-6
        assert row["tv"] < 1e-6
        assert row["capture"] > 0.999


def test_errors_by_hand_leave_invisible_spins_out() -> None:
    # One spin of each problem is visible: |ΔP| of 0.1 and 0.3, and no pair.
    mask = torch.tensor([[True, False], [True, False]])
    h = torch.tensor([[0.3, 5.0], [-0.2, 5.0]], dtype=torch.float64)
    shift = torch.tensor([[0.1, 0.0], [-0.3, 0.0]], dtype=torch.float64)
    wrong = mutant(
        REFERENCE, "shifted", problem=lambda ising: Ising(_shifted(ising.fields, shift), visible=mask)
    )
    row = one_row(wrong, Ensemble("hand", 0.0, Ising(h, visible=mask)))
    assert (row["marginal_mean"], row["marginal_max"]) == pytest.approx((0.2, 0.3))
    assert row["pair_mean"] == row["attention_mean"] == 0
    assert row["independent_error"] < 1e-15
    assert row["capture"] is None


def _shifted(h: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """Fields whose P = σ(2h) is larger by this."""
    return torch.where(by != 0, torch.logit(torch.sigmoid(2 * h) + by) / 2, h)


def test_independent_spins_capture_nothing() -> None:
    row = one_row(independent(REFERENCE), sk([0.8], **SMALL)[0])
    assert row["capture"] == pytest.approx(0, abs=1e-12)
    assert row["marginal_mean"] == pytest.approx(row["independent_error"])


def test_perfect_reads_sit_at_the_floor() -> None:
    # N = 4000 reads of 36 problems: floors are means over problems; fixed seed, so no false alarm.
    (ensemble,) = sk([0.6], num_spins=5, instances=6, queries=6)
    row = one_row(ReferenceSampler(), ensemble, num_reads=4000)
    assert row["num_reads"] == 4000
    assert row["tv"] == pytest.approx(row["tv_floor"], rel=0.1)
    assert row["marginal_mean"] == pytest.approx(row["marginal_floor"], rel=0.25)


def test_wrong_temperature_is_seen() -> None:
    # beta x 1.05, N = 20,000 reads of 12 problems; the fit is within 4.9 errors (alpha 1e-6) of 1.05.
    hot = mutants(ReferenceSampler())["beta_times_1.05"]
    (ensemble,) = sk([0.8], num_spins=5, instances=4, queries=3)
    row = one_row(hot, ensemble, num_reads=20_000)
    for name in ("beta_h", "beta_J"):
        assert row[name] == pytest.approx(1.05, abs=4.9 * row[f"{name}_error"])
        assert row[name] > 1 + 4.9 * row[f"{name}_error"]


def test_masks_and_shared_couplings_of_attention(attention: Ensemble) -> None:
    row = one_row(ReferenceSampler(), attention, num_reads=2000)
    assert row["queries"] == 4 * 2 * 4
    assert row["tv"] == pytest.approx(row["tv_floor"], rel=0.3)
    assert row["attention_mean"] < 0.05


def test_mean_field_is_scored_by_its_product_distribution() -> None:
    row = one_row(sampler("mean_field"), ferromagnet([0.6], num_spins=4, queries=6)[0])
    assert 0 < row["capture"] < 1
    assert 0 < row["tv"] < 1
    assert row["pair_mean"] is None


def test_reads_and_seed_reach_the_backend() -> None:
    recorder = RecorderSampler(ReferenceSampler())
    first, again = (
        fidelity_report({"r": recorder}, sk([0.2, 0.4], **SMALL), num_reads=64, seed=11).rows
        for _ in range(2)
    )
    drawn = [call for call in recorder.calls if call.method == "sample"]
    assert {(call.num_reads, call.seed) for call in drawn} == {(64, 11)}
    for a, b in zip(first, again, strict=True):
        assert {**a, "us_per_query": 0} == {**b, "us_per_query": 0}


class _Quadratic(ReferenceSampler):
    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(**{**super().capabilities.__dict__, "three_body": False})


def test_refusal_is_a_row_and_no_exact_answer_an_error(tmp_path: Path) -> None:
    (plain,) = sk([0.4], **SMALL)
    K = torch.zeros(4, 4, 4, dtype=torch.float64)
    cubic = Ensemble("cubic", 0.4, Ising(plain.ising.fields, plain.ising.couplings, three_body=K))
    report = fidelity_report({"q": _Quadratic(), "r": REFERENCE}, [cubic], num_reads=8)
    assert "fields and couplings only" in report.rows[0]["refused"]
    assert report.rows[1]["refused"] is None
    with pytest.raises(ValueError, match="every backend refused"):
        FidelityReport(report.rows[:1], 8, 0).plot(tmp_path / "x.png")
    recorder = RecorderSampler(ReferenceSampler())
    ensembles = [*sk([0.1], **SMALL), *sk([0.1], num_spins=60, instances=1, queries=1)]
    with pytest.raises(ValueError, match=r"'SK' at strength 0\.1 with 60 spins has no exact answer"):
        fidelity_report({"r": recorder}, ensembles)
    assert recorder.calls == []


def test_without_backends_or_ensembles_nothing_is_reported() -> None:
    with pytest.raises(ValueError, match="backends: expected at least one"):
        fidelity_report({}, sk([0.1]))
    with pytest.raises(ValueError, match="ensembles: expected at least one"):
        fidelity_report({"r": REFERENCE}, [])


def test_options_describe_the_problems() -> None:
    options = FidelityOptions(strengths=(0.2, 0.4), sizes=(3, 4), instances=2, queries=5)
    found = options.problems(seed=7)
    assert [(e.name, e.strength, e.ising.num_problems) for e in found] == [
        (f"{family} n={n}", g, 10) for n in (3, 4) for family in ("SK", "ferromagnet") for g in (0.2, 0.4)
    ]
    (same,) = sk([0.2], num_spins=3, instances=2, queries=5, seed=7)
    assert torch.equal(found[0].ising.fields, same.ising.fields)
    assert FidelityOptions(ensembles=("sk",), strengths=(1.0,)).problems(0)[0].name == "SK"
    games = FidelityOptions(ensembles=("tokens",), token_weights=(2.0,), sizes=(3,), instances=2, queries=5)
    (game,), (alone,) = games.problems(seed=7), tokens([2.0], num_spins=3, instances=10, seed=7)
    assert torch.equal(game.ising.fields, alone.ising.fields)


@pytest.fixture(scope="module")
def report() -> FidelityReport:
    backends = {"exact": REFERENCE, "reads": ReferenceSampler(), "J = 0": independent(REFERENCE)}
    ensembles = [*sk([0.2, 0.6], **SMALL), *ferromagnet([0.4], num_spins=4, queries=6)]
    return fidelity_report(backends, ensembles, num_reads=200)


def test_json_has_every_column(report: FidelityReport) -> None:
    content = json.loads(report.to_json())
    assert len(content["rows"]) == len(report.rows) == 9
    assert set(content["definitions"]) <= set(content["rows"][0])
    assert (content["num_reads"], content["seed"]) == (200, 0)


def test_lines_for_several_strengths_and_bars_for_one(report: FidelityReport, tmp_path: Path) -> None:
    text = report.plot(tmp_path / "lines.svg").read_text()
    for words in ("SK", "ferromagnet, g = 0.4", "coupling strength g", "J = 0", "exact reads", "at least"):
        assert f"<!-- {words}" in text or f"{words} " in text, words
    error = next(r for r in report.rows if (r["ensemble"], r["backend"]) == ("ferromagnet", "J = 0"))
    assert f"<!-- {error['marginal_mean']:.2g} -->" in text  # above its bar


def test_progress_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    fidelity_report({"r": REFERENCE}, sk([0.2], **SMALL), progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "exact answers" in err
    assert "r on SK, g = 0.2" in err


def sentence_row(name: str, error: float | None, chance: float | None = None) -> dict[str, Any]:
    refused = "too large." if error is None else None
    return {"backend": name, "marginal_mean": error, "marginal_p": chance, "refused": refused}


def test_the_summary_ranks_answers_and_reads_apart() -> None:
    rows = [
        *(sentence_row("good", 0.01), sentence_row("reads", 0.012, 0.0051), sentence_row("bad", 0.1)),
        *(sentence_row("small", 0.001), sentence_row("good", 0.03), sentence_row("reads", 0.013, 0.0049)),
        *(sentence_row("bad", 0.3), sentence_row("small", None), sentence_row("right", 0.02, 0.3)),
    ]
    assert FidelityReport(rows, 1, 0).summary() == (
        "Mean |ΔP| over all problems, best first: good (0.02), bad (0.2). "
        "The same from reads, read noise included: reads (0.013), right (0.02). "
        "Not to be told from exact reads (alpha = 0.01 over the rows of a backend): "
        "reads in 1 of 2 rows, right in every row. Not ranked, as they refused some problems: small."
    )


def test_a_correct_sampler_is_told_from_a_biased_one() -> None:
    """Alpha 0.01 over the rows: of 30 reports of a correct sampler at most 3 may differ (chance 2e-4).

    On three spins exact reads often show an error far above the mean of their errors; on 160 problems a bias of 5 % of
    beta is certain (p = 3e-8) where the error is only a quarter above it.
    """
    right, warm = (
        ReferenceSampler(),
        mutant(ReferenceSampler(), "5 %", problem=lambda i: scaled(i, 1.05, 1.05)),
    )
    alone = Ensemble("own", 1.0, Ising([0.5, -1.0, 0.3], 0.8 * (1 - torch.eye(3))).to(torch.float64))
    backends, above, missed = {"right": right, "J = 0": independent(right)}, 0, 0
    for seed in range(30):
        report = fidelity_report(backends, [alone], num_reads=500, seed=seed)
        above += report.rows[0]["marginal_mean"] > 1.25 * report.rows[0]["marginal_floor"]
        missed += "right in every row" not in report.summary()
        assert "J = 0 in 0 of 1 rows" in report.summary()
    assert above > 3 >= missed
    many = sk([0.6, 1.0], num_spins=6, instances=10, queries=8)
    report = fidelity_report({"right": right, "5 %": warm}, many, num_reads=1000)
    assert "right in every row, 5 % in 0 of 2 rows." in report.summary()
    assert all(row["marginal_mean"] < 1.25 * row["marginal_floor"] for row in report.rows)


def test_an_error_from_reads_has_the_interval_of_exact_reads(report: FidelityReport) -> None:
    shown = {
        row["backend"]: column.cell(row)
        for row in report.rows
        for column in report.shown()
        if column.title == "|ΔP|"
    }
    assert shown["exact"] == formatted(report.rows[-3]["marginal_mean"])
    row = next(row for row in report.rows[::-1] if row["backend"] == "reads")
    assert row["marginal_low"] < row["marginal_floor"] < row["marginal_high"]
    assert (
        shown["reads"]
        == f"{formatted(row['marginal_mean'])} ({row['marginal_low']:.2g} to {row['marginal_high']:.2g})"
    )
    assert row["effective_reads"] == pytest.approx(200)


def test_the_legend_says_what_headings_mean(report: FidelityReport) -> None:
    lines = report.legend().splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["g", "capture", "µs"]
    assert "1 - |ΔP|/(|ΔP| of the J = 0 answer)" in lines[1]
