import contextlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run, run_json, train

from diabat.circuits import (
    TrotterPlan,
    anneal_circuit,
    available_plans,
    builtin_plan,
    load_plan,
    plan_betas,
    save_plan,
    to_qasm3,
)
from diabat.documents.overrides import apply_overrides
from diabat.lab.config import load_config, make_config
from diabat.lab.runs import anneals
from diabat.lab.studies.learned.search import Watch

QUICK = [
    *("anneal.steps=3", "anneal.restarts=2", "anneal.iterations=10", "anneal.polish=2"),
    *("anneal.held_out=2", "--no-progress"),
]
RANDOM = [*QUICK, "anneal.strengths=[0.5,1]", "anneal.spins=[3]", "anneal.instances=6"]
PLAN = TrotterPlan(np.array([0.3, 0.6]), np.array([0.2, 0.5]), np.array([1.2, 0.7]), "two steps")


@pytest.fixture
def plan(tmp_path: Path) -> str:
    save_plan(
        tmp_path / "two.json",
        PLAN,
        {"loss": 0.25, "finished": True, "command": "diabat anneal learn two.json"},
    )
    return str(tmp_path / "two.json")


def angles(path: Path) -> np.ndarray:
    plan, _ = load_plan(path)
    return np.stack((plan.field_angles, plan.coupling_angles, plan.mixer_angles))


def test_a_learned_plan_is_saved_with_all_that_made_it(tmp_path: Path) -> None:
    output = tmp_path / "new" / "plan.json"
    printed = run_json("anneal", "learn", f"output={output}", *RANDOM, "anneal.pair_weight=0.5", "seed=3")
    plan, metadata = load_plan(output)
    assert printed["metadata"] == metadata
    assert printed["mixer_angles_rad"] == plan.mixer_angles.tolist()
    assert plan.steps == printed["steps"] == 3
    assert (metadata["finished"], metadata["seed"]) == (True, 3)
    assert metadata["loss"] < 0.5
    assert (metadata["anneal"]["pair_weight"], metadata["anneal"]["strengths"]) == (0.5, [0.5, 1])
    rows = metadata["held_out"]["rows"]
    assert [(row["num_spins"], row["strength"]) for row in rows] == [
        (n, g) for n in (6, 8, 10) for g in (0.3, 0.6, 1)
    ]
    assert all(row["instances"] == 2 and 0 < row["learned"] < row["independent"] for row in rows)
    assert run("anneal", "show", str(output)).stdout.count("2 SK") == 9


def test_the_recorded_command_makes_the_same_plan_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", f"output={tmp_path / 'second.json'}"
    options = "anneal.weights=[2,1]", 'anneal.start="1e3"'
    save_plan(tmp_path / "1e3", TrotterPlan(*np.full((3, 3), 0.4)), {})
    with contextlib.chdir(tmp_path):
        made = run("anneal", "learn", f"output={first}", *RANDOM, *options)
        assert made.exit_code == 0, made.stderr
        words = shlex.split(load_plan(first)[1]["command"])
        assert words[:4] == ["diabat", "anneal", "learn", f"output={first}"]
        again = run("anneal", "learn", *words[3:], second, "--no-progress")
        assert again.exit_code == 0, again.stderr
        np.testing.assert_array_equal(angles(tmp_path / "second.json"), angles(first))
        other = run("anneal", "learn", *words[3:], second, "seed=9", "--force", "--no-progress")
        assert other.exit_code == 0, other.stderr
    assert not np.allclose(angles(tmp_path / "second.json"), angles(first))


def test_the_shipped_plans_can_be_described_by_their_commands() -> None:
    """Every command that a shipped plan records is one that is written today, and describes its problems."""
    for name in available_plans():
        metadata = builtin_plan(name)[1]
        words = shlex.split(metadata["command"])
        assert words[:3] == ["diabat", "anneal", "learn"]
        config = make_config(apply_overrides({}, words[3:]))
        assert (config.anneal.steps, config.seed) == (builtin_plan(name)[0].steps, metadata["seed"])
        assert list(config.anneal.strengths) == metadata["ensemble"]["strengths"]


def test_the_shipped_configuration_writes_the_defaults_out() -> None:
    assert load_config("anneal").anneal == make_config({}).anneal


def test_fields_and_couplings_of_a_run_are_learned(tmp_path: Path) -> None:
    # Couplings start at zero: a few steps of a large rate give them something to learn.
    rate = ["training.coupling_learning_rate=0.3"]
    result = train(tmp_path / "run", *rate, steps=8)
    assert result.exit_code == 0, result.stderr
    output = tmp_path / "p.json"
    metadata = run_json("anneal", "learn", f"output={output}", f"anneal.run={tmp_path / 'run'}", *QUICK)[
        "metadata"
    ]
    assert metadata["anneal"]["run"] == str(tmp_path / "run")
    names = [row["name"] for row in metadata["held_out"]["rows"]]
    assert names[0] == "trained, layer 1"
    assert names[-9:] == ["SK"] * 9


def interrupted(after: int) -> Callable[..., Any]:
    def learn(objective: Any, options: Any, *, seed: int, start: Any, watch: Watch) -> Any:
        for k in range(after):
            watch(0.5, TrotterPlan(*np.full((3, 2), k + 1.0)), 1 / (k + 2))
        raise KeyboardInterrupt

    return learn


def test_an_interruption_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "p.json"
    monkeypatch.setattr(anneals, "learn_plan", interrupted(3))
    result = run("anneal", "learn", f"output={output}", *RANDOM)
    assert result.exit_code == 130
    assert f"The best plan so far (2 steps, loss 0.25) is saved in '{output}'; to begin" in result.stderr
    assert result.stderr.endswith(f" repeat the command with anneal.start={output} --force.\n")
    plan, metadata = load_plan(output)
    assert plan.mixer_angles.tolist() == [3, 3]
    assert not metadata["finished"]
    monkeypatch.undo()
    assert "(interrupted)" in run("anneal", "show", str(output)).stdout
    start = ("anneal.steps=4", f"anneal.start={output}", "--force")
    again = run("anneal", "learn", f"output={output}", *RANDOM, *start)
    assert again.exit_code == 0, again.stderr
    assert load_plan(output)[0].steps == 4


def test_an_interruption_before_the_first_plan_reports_that_nothing_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anneals, "learn_plan", interrupted(0))
    result = run("anneal", "learn", f"output={tmp_path / 'p.json'}", *RANDOM)
    assert (result.exit_code, result.stderr) == (130, "\nInterrupted. Nothing was saved yet.\n")
    assert not (tmp_path / "p.json").exists()


def test_show_prints_angles_and_betas(plan: str, tmp_path: Path) -> None:
    text = run("anneal", "show", plan, "--figure", str(tmp_path / "a.svg")).stdout
    assert f"beta_h {plan_betas(PLAN).beta_h:.4f}, beta_J {plan_betas(PLAN).beta_J:.4f}" in text
    assert "+0.600000    +0.500000   +0.700000" in text
    assert "no errors on held-out instances" in text
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    document = run_json("anneal", "show", plan)
    assert document["coupling_angles_rad"] == [0.2, 0.5]
    assert document["beta_J"] == plan_betas(PLAN).beta_J


def test_show_finds_shipped_plans_by_name() -> None:
    document = run_json("anneal", "show", "boltzmann-8")
    assert document["steps"] == 8
    assert (
        "Range: |h| up to 2.89, rows of J of norm up to 1.75\n" in run("anneal", "show", "boltzmann-8").stdout
    )
    assert document["metadata"]["held_out"]["rows"]


def test_export_prints_the_circuit_of_the_problem(plan: str, tmp_path: Path) -> None:
    fields, J = np.array([0.5, -1.0, 0.2]), np.array([[0, 0.1, 0], [0.1, 0, -0.3], [0, -0.3, 0]])
    expected = to_qasm3(anneal_circuit(PLAN, fields, J, measure=True))
    path = tmp_path / "problem.yaml"
    path.write_text("fields: [0.5, -1, 0.2]\ncouplings: [[0, 1, 0.1], [1, 2, -0.3]]\n")
    assert run("anneal", "export", plan, str(path)).stdout == expected
    document = run_json("anneal", "export", plan, str(path), "--beta", "2")
    assert document["qasm3"] == to_qasm3(anneal_circuit(PLAN, 2 * fields, 2 * J, measure=True))
    for option, file in (("--output", "new/a.qasm"), ("-o", "b.qasm3")):
        result = run("anneal", "export", plan, str(path), option, str(tmp_path / file))
        assert result.stdout == f"Circuit: {tmp_path / file}\n"
        assert (tmp_path / file).read_text() == expected
    path.write_text("fields: [0.5]\n")
    free = run("anneal", "export", plan, str(path)).stdout
    assert free == to_qasm3(anneal_circuit(PLAN, [0.5], [[0.0]], measure=True))
