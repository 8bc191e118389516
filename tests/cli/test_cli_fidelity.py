import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run, run_json, train
from typer.testing import Result

from diabat.ising.problem_files import read_problem, write_problem
from diabat.report import formatted

QUICK = [
    "fidelity.backends.dqa-5ns=null",
    "fidelity.backends.boltzmann-8=null",
    "fidelity.strengths=[0.5]",
    "fidelity.token_weights=[1]",
    "fidelity.sizes=[3]",
    "fidelity.instances=2",
]


def fidelity(*arguments: str) -> Result:
    return run("fidelity", "fidelity", *QUICK, "--no-progress", *arguments)


def test_fidelity_reports_rows_as_json_and_as_a_table() -> None:
    rows = json.loads(fidelity("--json").stdout)["rows"]
    names = [(row["ensemble"], row["backend"]) for row in rows]
    assert names == [(family, "mean_field") for family in ("SK", "ferromagnet", "tokens")]
    assert [row["queries"] for row in rows] == [8, 8, 8]
    text = fidelity().stdout
    assert "capture" in text
    assert "\nµs: microseconds per problem" in text
    assert re.fullmatch(
        r"Mean \|ΔP\| over all problems, best first: mean_field \(\S+\)\.", text.splitlines()[-1]
    )
    result = run("fidelity", *QUICK, "--no-progress", "--json")  # the shipped configuration is the default
    assert [row["marginal_mean"] for row in json.loads(result.stdout)["rows"]] == [
        row["marginal_mean"] for row in rows
    ]


def test_fidelity_on_a_trained_checkpoint_with_a_figure(tmp_path: Path) -> None:
    assert train(tmp_path / "run", "model.num_layers=2").exit_code == 0
    figure = tmp_path / "new" / "figure.svg"
    result = fidelity(f"fidelity.checkpoint={tmp_path / 'run'}", "--json", "--figure", str(figure))
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert [row["ensemble"] for row in rows[3:]] == ["trained, layer 1", "trained, layer 2"]
    assert all(row["num_spins"] == 4 for row in rows[3:])
    assert figure.read_text().startswith("<?xml")


LONG = "mean_field_with_a_name_of_one_s_own"


@pytest.mark.parametrize("width", [80, 130])
@pytest.mark.parametrize("backend", ["mean_field", LONG])
def test_nothing_of_the_table_is_cut_at_any_width(
    width: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are folded where the table is too wide; every number is there in full."""
    monkeypatch.setenv("COLUMNS", str(width))
    renamed = () if backend == "mean_field" else (
        "fidelity.backends.mean_field=null", f"fidelity.backends.{backend}.backend=mean_field"
    )  # fmt: skip
    rows = json.loads(fidelity(*renamed, "--json").stdout)["rows"]
    text = fidelity(*renamed).stdout.partition("\ng: ")[0]  # what follows are sentences
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in text
    assert len(rows) == 3
    for row in rows:
        for key in ("marginal_mean", "tv", "beta_h", "capture"):
            assert formatted(row[key]) in text
    # A folded name goes on below itself.
    assert "".join(word for word in text.split() if word in backend).count(backend) == 3


PROBLEM = "fields: [0.5, -1.0, 0.3]\ncouplings: [[0, 1, 0.8], [1, 2, -1.3]]\nbeta: 2\n"


def rows_of(*words: str, piped: str | None = None) -> list[dict[str, Any]]:
    result = run("fidelity", *words, "--no-progress", "--json", piped=piped)
    assert result.exit_code == 0, result.stderr
    rows: list[dict[str, Any]] = json.loads(result.stdout)["rows"]
    return [{key: value for key, value in row.items() if key != "us_per_query"} for row in rows]


def test_a_problem_of_one_s_own_is_compared(tmp_path: Path) -> None:
    """The errors are those of 'diabat sample --compare exact', whatever the format of the file."""
    path = tmp_path / "own"
    path.write_text(PROBLEM)
    chosen = ["fidelity.backends.boltzmann-8=null", "fidelity.backends.t.backend=tempering"]
    found = rows_of(str(path), *chosen)
    assert [(row["ensemble"], row["backend"], row["queries"]) for row in found] == [
        ("own", name, 1) for name in ("mean_field", "dqa-5ns", "t")
    ]
    beside = run_json("sample", str(path), "sampler.backend=mean_field", "--compare", "exact")["comparison"]
    assert found[0]["marginal_mean"] == pytest.approx(beside["mean"], rel=1e-6)
    assert found[0]["marginal_max"] == pytest.approx(beside["largest"], rel=1e-6)
    assert found[0]["strength"] == pytest.approx(2 * (0.8**2 + 1.3**2) ** 0.5)  # beta √(2 ΣJ²/(n - 1))
    assert found[2]["num_reads"] == 1000
    assert found[2]["marginal_mean"] < 0.02 < found[0]["marginal_mean"]
    assert rows_of("fidelity", f"fidelity.problem={path}", *chosen) == found
    assert rows_of("-", *chosen, piped=PROBLEM)[0]["marginal_mean"] == found[0]["marginal_mean"]
    cold = rows_of(str(path), *chosen, "fidelity.beta=0.5")[0]
    assert cold["strength"] == pytest.approx(found[0]["strength"] / 4)
    ising = read_problem(path).ising
    for suffix in (".bqm", ".coo"):
        write_problem(tmp_path / f"p{suffix}", ising)
        same = rows_of(str(tmp_path / f"p{suffix}"), *chosen)
        assert [row["marginal_mean"] for row in same] == [row["marginal_mean"] for row in found]
    figure = tmp_path / "figure.svg"
    assert "own" in run("fidelity", str(path), *chosen, "--no-progress", "--figure", str(figure)).stdout
    assert figure.read_text().startswith("<?xml")
