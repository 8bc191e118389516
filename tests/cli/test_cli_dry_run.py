"""``diabat sample --dry-run``."""

from pathlib import Path

from cli_runs import run, run_json


def test_the_cost_of_a_call_is_told(tmp_path: Path) -> None:
    path = tmp_path / "problem.yaml"
    path.write_text("fields: [0.5, -1.0]\ncouplings: [[0, 1, 0.3]]\n")
    asked = ("sample", str(path), "--sampler", "dimod", "--num-reads", "30", "--dry-run")
    report = run_json(*asked, "--option", "reads_per_call=20")
    assert (report["submissions"], report["reads"], report["qubits"]) == (2, 30, 2)
    assert "1 problems in 1 submissions" in run(*asked).stdout
    refused = run("sample", str(path), "--dry-run")
    assert refused.exit_code == 2
    assert "--dry-run: expected backend 'dimod', which submits, got 'exact'" in refused.stderr
