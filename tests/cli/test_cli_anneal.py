import json
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
from diabat.cli.anneal import command
from diabat.config import load_config, make_config
from diabat.runs import anneals
from diabat.studies.learned import Watch

QUICK = [
    *(
        "--layers",
        "3",
        "--restarts",
        "2",
        "--iterations",
        "10",
        "--polish",
        "2",
        "--held-out",
        "2",
        "--no-progress",
    ),
]
RANDOM = [*QUICK, "--strengths", "0.5,1", "--spins", "3", "--instances", "6"]
PLAN = TrotterPlan(np.array([0.3, 0.6]), np.array([0.2, 0.5]), np.array([1.2, 0.7]), "two layers")


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
    printed = run_json("anneal", "learn", str(output), *RANDOM, "--pair-weight", "0.5", "--seed", "3")
    plan, metadata = load_plan(output)
    assert printed["metadata"] == metadata
    assert printed["mixer_angles_rad"] == plan.mixer_angles.tolist()
    assert plan.steps == printed["layers"] == 3
    assert metadata["finished"]
    assert metadata["seed"] == 3
    assert metadata["pair_weight"] == 0.5
    assert metadata["loss"] < 0.5
    assert metadata["ensemble"]["strengths"] == [0.5, 1]
    rows = metadata["held_out"]["rows"]
    assert [(row["num_spins"], row["strength"]) for row in rows] == [
        (n, g) for n in (6, 8, 10) for g in (0.3, 0.6, 1)
    ]
    assert all(row["instances"] == 2 and 0 < row["learned"] < row["independent"] for row in rows)


def test_the_recorded_command_makes_the_same_plan_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert run("anneal", "learn", str(first), *RANDOM, "--shared", "--weights", "2 1").exit_code == 0
    words = shlex.split(load_plan(first)[1]["command"])
    assert words[:4] == ["diabat", "anneal", "learn", str(first)]
    assert run("anneal", "learn", str(second), *words[4:], "--no-progress").exit_code == 0
    np.testing.assert_array_equal(angles(second), angles(first))
    np.testing.assert_array_equal(angles(first)[0], angles(first)[1])  # --shared
    other = run("anneal", "learn", str(second), *words[4:], "--seed", "9", "--force", "--no-progress")
    assert other.exit_code == 0
    assert not np.allclose(angles(second), angles(first))


def test_every_option_is_in_the_recorded_command() -> None:
    section: dict[str, Any] = {
        "layers": 6, "shared": True, "pair_weight": 0.25, "strengths": [0.5, 1], "weights": [1, 2], "spins": [3, 4],
        "instances": 7, "wide_fields": 6.5, "start": "boltzmann-4", "restarts": 2, "iterations": 11, "polish": 12,
        "held_out": 13,
    }  # fmt: skip
    assert command(make_config({"seed": 14, "anneal": section}), Path("p.json")) == (
        "diabat anneal learn p.json --layers 6 --shared --pair-weight 0.25 --strengths '0.5 1' --weights '1 2' "
        "--spins '3 4' --instances 7 --wide-fields 6.5 --wide-weight 1 --from boltzmann-4 --restarts 2 "
        "--iterations 11 --polish 12 --held-out 13 --seed 14"
    )
    recorded = command(make_config({"anneal": {"run": "runs/a", "pair_weight": 0.1234567}}), Path("p.json"))
    assert recorded == (
        "diabat anneal learn p.json --layers 8 --pair-weight 0.1234567 --run runs/a --restarts 8 "
        "--iterations 200 --polish 1000 --held-out 100 --seed 0"
    )


def test_the_shipped_plans_can_be_described_by_their_commands() -> None:
    """Every command that a shipped plan records is one that is written today."""
    for name in available_plans():
        recorded = builtin_plan(name)[1]["command"]
        words = shlex.split(recorded)
        pairs = dict(zip(words[4::2], words[5::2], strict=True))
        lists = {"--strengths", "--weights", "--spins"}
        section = {
            key[2:].replace("-", "_"): [json.loads(x) for x in value.split()]
            if key in lists
            else json.loads(value)
            for key, value in pairs.items()
            if key != "--seed"
        }
        assert command(make_config({"anneal": section}), Path(words[3])) == recorded


def test_a_configuration_describes_a_plan_as_the_options_do(tmp_path: Path) -> None:
    file, output = tmp_path / "learn.yaml", tmp_path / "p.json"
    file.write_text(
        "seed: 3\nanneal: {layers: 3, restarts: 2, iterations: 10, polish: 2, held_out: 2, "
        "strengths: [0.5, 1], spins: [3], instances: 6}\n"
    )
    by_option = run_json("anneal", "learn", str(output), *RANDOM, "--seed", "3")
    by_file = run_json("anneal", "learn", str(output), str(file), "--force", "--no-progress")
    assert by_file["mixer_angles_rad"] == by_option["mixer_angles_rad"]
    assert by_file["metadata"]["command"] == by_option["metadata"]["command"]
    overridden = run_json(
        "anneal", "learn", str(output), "anneal.spins=[3]", "seed=4", *RANDOM, "--seed", "3", "--force"
    )
    assert overridden["mixer_angles_rad"] == by_option["mixer_angles_rad"]
    other = run_json("anneal", "learn", str(output), str(file), "anneal.layers=2", "--force", "--no-progress")
    assert other["layers"] == 2


def test_the_shipped_configuration_writes_the_defaults_out() -> None:
    assert load_config("anneal").anneal == make_config({}).anneal


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["anneal.layers=0"], "anneal.layers: expected an integer >= 1, got 0."),
        (["anneal.layer=2"], "anneal.layer: unknown key. Did you mean 'anneal.layers'?"),
        (["anneal.strengths=[0.0]"], "anneal.strengths: expected a finite number > 0, got 0.0."),
        (["anneal.spins=[4.5]"], "anneal.spins[0]: expected an integer, got 4.5 (number)."),
        (["anneal.spins=[17]"], "anneal.spins: expected at most 16, got 17."),
        (["anneal.weights=[1]"], "anneal.weights: expected 4 numbers, one for each strength, not all 0, got [1.0]."),
        (["anneal.wide_weight=2"], "anneal.wide_weight: must be combined with wide_fields, got 2 without it."),
        (["anneal.wide_fields=-1"], "anneal.wide_fields: expected a finite number > 0, got -1.0."),
        (["anneal.pair_weight=-1"], "anneal.pair_weight: expected a finite number >= 0, got -1.0."),
        (["anneal.run=r", "anneal.spins=[4]"], "anneal.spins: cannot be combined with run, which provides the pro"),
        (["anneal.run=nowhere"], "anneal.run: expected the folder of a run, got 'nowhere' without config.json."),
        (["anneal.start=boltzman-8"], "anneal.start: expected one of boltzmann-4, "),
        (["anneal.start=boltzmann-8", "--layers", "6"], "anneal.start: expected 6 steps over a power of two, got 8"),
        (["--from", "boltzmann-8", "anneal.layers=6"], "--from: expected 6 steps over a power of two, got 8"),
        (["--layers", "100000001"], "--layers: expected at most"),
        (["--strengths", "1e-9"], "--strengths: expected couplings that change the marginals, got none in 'SK'"),
        (["--wide-fields", "nan"], "--wide-fields: expected a finite number, got nan (number)."),
        (["anneal.instances=0"], "anneal.instances: expected an integer >= 1, got 0."),
        (["anneal=3"], "anneal: expected a mapping with keys such as anneal.layers, got 3 (integer)."),
        (["anneall"], "'anneall': no such file, and no shipped configuration has this name. Did you mean 'anneal'?"),
    ],
)  # fmt: skip
def test_a_section_is_refused_by_its_keys(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = run("anneal", "learn", str(tmp_path / "p.json"), *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Error: {message}")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "p.json").exists()


def test_the_error_table_is_printed(tmp_path: Path) -> None:
    result = run("anneal", "learn", str(tmp_path / "p.json"), *RANDOM)
    assert "J = 0" in result.stdout
    assert result.stdout.count("2 SK") == 9
    shown = run("anneal", "show", str(tmp_path / "p.json"))
    assert result.stdout.split("\n\n")[1] in shown.stdout


def test_fields_and_couplings_of_a_run_are_learned(tmp_path: Path) -> None:
    # Couplings start at zero: a few steps of a large rate give them something to learn.
    rate = ["training.coupling_learning_rate=0.3"]
    result = train(tmp_path / "run", *rate, steps=8)
    assert result.exit_code == 0, result.stderr
    output = tmp_path / "p.json"
    metadata = run_json("anneal", "learn", str(output), "--run", str(tmp_path / "run"), *QUICK)["metadata"]
    assert metadata["ensemble"] == {"name": "recorded", "run": str(tmp_path / "run")}
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
    result = run("anneal", "learn", str(output), *RANDOM)
    assert result.exit_code == 130
    assert f"The best plan so far (2 layers, loss 0.25) is saved in '{output}'" in result.stderr
    plan, metadata = load_plan(output)
    assert plan.mixer_angles.tolist() == [3, 3]
    assert not metadata["finished"]
    monkeypatch.undo()
    assert "(interrupted)" in run("anneal", "show", str(output)).stdout
    again = run("anneal", "learn", str(output), *RANDOM, "--layers", "4", "--from", str(output), "--force")
    assert again.exit_code == 0, again.stderr
    assert load_plan(output)[0].steps == 4


def test_an_interruption_before_the_first_plan_reports_that_nothing_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anneals, "learn_plan", interrupted(0))
    result = run("anneal", "learn", str(tmp_path / "p.json"), *RANDOM)
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
    assert document["layers"] == 8
    assert (
        "Range: |h| up to 2.89, rows of J of norm up to 1.75\n" in run("anneal", "show", "boltzmann-8").stdout
    )
    assert document["metadata"]["held_out"]["rows"]


def test_export_writes_the_circuit_of_the_problem(plan: str, tmp_path: Path) -> None:
    fields, J = np.array([0.5, -1.0, 0.2]), np.array([[0, 0.1, 0], [0.1, 0, -0.3], [0, -0.3, 0]])
    expected = to_qasm3(anneal_circuit(PLAN, fields, J, measure=True))
    problem = ["--fields", "0.5 -1 0.2", "--couplings", "0.1, 0, -0.3"]
    assert run("anneal", "export", plan, *problem).stdout == expected
    (tmp_path / "problem.yaml").write_text("fields: [0.5, -1, 0.2]\ncouplings: [[0, 1, 0.1], [1, 2, -0.3]]\n")
    file = ["--problem", str(tmp_path / "problem.yaml")]
    assert run("anneal", "export", plan, *file).stdout == expected
    document = run_json("anneal", "export", plan, *file, "--beta", "2", "--no-measure")
    assert document["qasm3"] == to_qasm3(anneal_circuit(PLAN, 2 * fields, 2 * J))
    written = run("anneal", "export", plan, *file, "--output", str(tmp_path / "c.qasm"))
    assert written.stdout == f"Circuit: {tmp_path / 'c.qasm'}\n"
    assert (tmp_path / "c.qasm").read_text() == expected
    free = run("anneal", "export", plan, "--fields", "0.5").stdout
    assert free == to_qasm3(anneal_circuit(PLAN, [0.5], [[0.0]], measure=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["learn", "p.yaml"], "OUTPUT: expected a file ending in .json, got 'p.yaml'."),
        (["learn", "PLAN"], "OUTPUT: expected a new file, or --force to replace it, got 'PLAN', which already exists."),
        (["learn", "p.json", "--strengths", "1 x"], "--strengths: expected numbers with spaces or commas between"),
        (["learn", "p.json", "--strengths", " "], "--strengths: expected at least one number, got ' '."),
        (["learn", "p.json", "--strengths", "0"], "--strengths: expected a finite number > 0, got 0.0."),
        (["learn", "p.json", "--weights", "1"], "--weights: expected 4 numbers, one for each strength, not all 0,"),
        (["learn", "p.json", "--weights", "1 1 1 -1"], "--weights: expected a finite number >= 0, got -1.0."),
        (["learn", "p.json", "--spins", "4.5"], "--spins: expected integers, got 4.5."),
        (["learn", "p.json", "--spins", "17"], "--spins: expected at most 16, got 17."),
        (["learn", "p.json", "--run", "r", "--strengths", "1"], "--strengths: cannot be combined with --run, which"),
        (["learn", "p.json", "--run", "r", "--weights", "1"], "--weights: cannot be combined with --run, which pro"),
        (["learn", "p.json", "--run", "r", "--spins", "4"], "--spins: cannot be combined with --run, which provides"),
        (["learn", "p.json", "--run", "r", "--instances", "4"], "--instances: cannot be combined with --run, which"),
        (["learn", "p.json", "--run", "r", "--wide-fields", "6"], "--wide-fields: cannot be combined with --run,"),
        (["learn", "p.json", "--wide-weight", "2"], "--wide-weight: must be combined with wide_fields, got"),
        (["learn", "p.json", "--wide-fields", "-1"], "--wide-fields: expected a finite number > 0, got -1"),
        (["learn", "p.json", "--wide-fields", "6", "--wide-weight", "0"], "--wide-weight: expected a finite number >"),
        (["learn", "p.json", "--run", "nowhere"], "--run: expected the folder of a run, got 'nowhere' without config"),
        (["learn", "p.json", "--from", "PLAN", "--layers", "6"], "--from: expected 6 steps over a power of two"),
        (["learn", "p.json", "--from", "PLAN", "--shared", "--layers", "2"], "--shared: expected a plan with equal"),
        (["show", "boltzman-8"], "got 'boltzman-8'. Did you mean 'boltzmann-8'?"),
        (["show", "missing.json"], "missing.json: no such file"),
        (["show", "PLAN", "--figure", "f.xyz"], "--figure: expected a file ending in .png, .pdf, .svg, got 'f.xyz'."),
        (["export", "PLAN"], "--problem, --fields: expected one of them, got neither."),
        (["export", "PLAN", "--fields", "1", "--problem", "p"], "--problem, --fields: expected one of them, got both."),
        (["export", "PLAN", "--problem", "p", "--couplings", "1"], "--couplings: cannot be combined with --problem,"),
        (["export", "PLAN", "--fields", "1", "--beta", "2"], "--beta: cannot be combined with --fields, only with"),
        (["export", "PLAN", "--fields", "1 nan"], "--fields: expected numbers with spaces or commas between"),
        (["export", "PLAN", "--fields", "1 2", "--couplings", "1 2"], "--couplings: expected 1 numbers for 2 spins"),
    ],
)  # fmt: skip
def test_refusals_are_one_sentence(plan: str, arguments: list[str], message: str) -> None:
    result = run("anneal", *(plan if word == "PLAN" else word for word in arguments))
    assert result.exit_code in (1, 2)
    assert result.stdout == ""
    assert message.replace("PLAN", plan) in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("p.json").exists()


@pytest.mark.parametrize("extra", ["three_body: [[0, 1, 2, 0.1]]", "visible: [true, true, false]"])
def test_problems_that_a_plan_cannot_run_are_not_exported(plan: str, extra: str, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(f"fields: [0.5, 1, 0]\n{extra}\n")
    result = run("anneal", "export", plan, "--problem", str(tmp_path / "p.yaml"))
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: --problem: expected ")
    assert json.loads(Path(plan).read_text())["label"] == "two layers"
