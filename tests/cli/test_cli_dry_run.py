"""``diabat sample --dry-run``."""

from pathlib import Path

import pytest
from cli_runs import run, run_json


def test_the_cost_of_a_call_is_told(tmp_path: Path) -> None:
    path = tmp_path / "problem.yaml"
    path.write_text("fields: [0.5, -1.0]\ncouplings: [[0, 1, 0.3]]\n")
    asked = ("sample", str(path), "sampler.backend=dimod", "--num-reads", "30", "--dry-run")
    report = run_json(*asked, "sampler.reads_per_call=20")
    assert (report["submissions"], report["reads"], report["qubits"]) == (2, 30, 2)
    assert "1 problems in 1 submissions" in run(*asked).stdout


@pytest.mark.parametrize("asked", [["--dry-run"], ["--samples"], []])
def test_reads_of_the_configuration_count_where_the_command_names_none(
    tmp_path: Path, asked: list[str]
) -> None:
    """The reads of a paid call: 50, not the default of the class."""
    path = tmp_path / "problem.yaml"
    path.write_text("fields: [0.5]\n")
    command = ("sample", str(path), "sampler.backend=dimod", "sampler.num_reads=50", *asked)
    report = run_json(*command)
    assert (report["reads"] if "--dry-run" in asked else report["num_reads"]) == 50
    assert run_json(*command, "--num-reads", "7").get("num_reads", 7) == 7
