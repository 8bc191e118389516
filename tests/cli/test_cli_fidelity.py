import json
import re
from pathlib import Path

import pytest
from cli_runs import run, train
from typer.testing import Result

from diabat.studies.report import formatted

QUICK = [
    "fidelity.backends.dqa-5ns=null",
    "fidelity.backends.boltzmann-8=null",
    "fidelity.strengths=[0.5]",
    "fidelity.sizes=[3]",
    "fidelity.instances=2",
]


def fidelity(*arguments: str) -> Result:
    return run("fidelity", "fidelity", *QUICK, "--no-progress", *arguments)


def test_fidelity_reports_rows_as_json_and_as_a_table() -> None:
    rows = json.loads(fidelity("--json").stdout)["rows"]
    assert [(row["ensemble"], row["backend"]) for row in rows] == [
        ("SK", "mean_field"),
        ("ferromagnet", "mean_field"),
    ]
    assert [row["queries"] for row in rows] == [8, 8]
    text = fidelity().stdout
    assert "capture" in text
    assert re.fullmatch(
        r"Mean \|ΔP\| over all problems, best first: mean_field \(\S+\)\.", text.splitlines()[-1]
    )


def test_fidelity_without_a_configuration_takes_the_shipped_one() -> None:
    wanted = json.loads(fidelity("--json").stdout)["rows"]
    result = run("fidelity", *QUICK, "--no-progress", "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert [row["marginal_mean"] for row in rows] == [row["marginal_mean"] for row in wanted]


def test_fidelity_on_a_trained_checkpoint_with_a_figure(tmp_path: Path) -> None:
    assert train(tmp_path / "run", "model.num_layers=2").exit_code == 0
    figure = tmp_path / "new" / "figure.svg"
    result = fidelity(f"fidelity.checkpoint={tmp_path / 'run'}", "--json", "--figure", str(figure))
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert [row["ensemble"] for row in rows[2:]] == ["trained, layer 1", "trained, layer 2"]
    assert all(row["num_spins"] == 4 for row in rows[2:])
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
    text = fidelity(*renamed).stdout.partition("\nMean |ΔP|")[0]  # what follows is a sentence
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in text
    assert len(rows) == 2
    for row in rows:
        for key in ("marginal_mean", "tv", "beta_h", "capture"):
            assert formatted(row[key]) in text
    # A folded name goes on below itself.
    assert "".join(word for word in text.split() if word in backend).count(backend) == 2


def test_a_damaged_checkpoint_is_a_sentence(tmp_path: Path) -> None:
    assert train(tmp_path / "run").exit_code == 0
    weights = tmp_path / "run" / "best.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    result = fidelity(f"fidelity.checkpoint={tmp_path / 'run'}")
    assert result.exit_code == 1
    assert "best.safetensors is damaged: " in result.stderr
