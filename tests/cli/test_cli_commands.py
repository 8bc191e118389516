"""The commands backends, sample, config and warm-up."""

import importlib.util
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run, run_json, train

from diabat.cli import backends
from diabat.lab.config import load_config, shipped_configs, to_plain
from diabat.samplers import registry, warm_up
from diabat.samplers.warm_up import Warmed


@pytest.fixture
def problem(tmp_path: Path) -> str:
    path = tmp_path / "problem.yaml"
    path.write_text("fields: [0.5, -1.0]\ncouplings: [[0, 1, 0.3]]\n")
    return str(path)


def test_backends_lists_every_backend_and_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    result = run("backends")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout  # neither colour nor folded rows in a pipe
    listed = "straight_through, linear_response, covariance"
    assert any("exact" in line and listed in line for line in result.stdout.splitlines())
    for name in (*registry.available_backends(), *backends.EXTRAS):
        assert name in result.stdout
    wrapped = {repr(registry.sampler(name)).split("'")[1] for name in ("refine", "distributed")}
    assert (wrapped, "refine and distributed wrap dqa" in result.stdout) == ({"dqa"}, True)
    report = run_json("backends")
    exact = next(row for row in report["backends"] if row["backend"] == "exact")
    assert (exact["exact"], exact["law"], exact["available"]) == (True, "boltzmann", True)


def test_a_backend_that_cannot_be_built_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise ImportError("no module\nnamed x")

    monkeypatch.setitem(registry._registered, "broken", broken)
    result = run("backends")
    assert result.exit_code == 0
    assert "broken is not available: ImportError: no module named x" in result.stdout
    rows = {row["backend"]: row for row in run_json("backends")["backends"]}
    assert (rows["broken"]["available"], rows["exact"]["available"]) == (False, True)


@pytest.mark.parametrize("present", [True, False])
def test_missing_extras_come_with_the_command(monkeypatch: pytest.MonkeyPatch, present: bool) -> None:
    def find_spec(name: str) -> Any:
        if not present and "." in name:
            raise ModuleNotFoundError(name)
        return object() if present else None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    rows = {row["extra"]: row for row in backends.extra_rows()}
    assert all(row["installed"] is present for row in rows.values())
    assert rows["dwave"]["install"] == "pip install -e '.[dwave]'"
    assert rows["dwave"]["missing"] == ([] if present else ["dwave.system", "dwave.samplers"])


def test_sample_reports_exact_marginals_and_log_z(problem: str) -> None:
    report = run_json("sample", problem)
    weights = {(a, b): math.exp(0.5 * a - b + 0.3 * a * b) for a in (-1, 1) for b in (-1, 1)}
    Z = sum(weights.values())
    assert report["log_partition"] == pytest.approx(math.log(Z))
    assert report["probability"] == pytest.approx(
        [(weights[1, 1] + weights[1, -1]) / Z, (weights[1, 1] + weights[-1, 1]) / Z]
    )
    assert (report["labels"], report["standard_error"]) == ([0, 1], None)
    text = run("sample", problem).stdout
    assert f"log Z = {math.log(Z):.9g}" in text
    assert f"{report['probability'][0]:.6g}" in text


def test_sample_estimates_from_reads_with_standard_errors(problem: str) -> None:
    arguments = ("sample", problem, "--num-reads", "400", "seed=5")
    report, again = run_json(*arguments), run_json(*arguments)
    assert report["probability"] == again["probability"]
    assert (report["num_reads"], report["info"]["seed"]) == (400, 5)
    p, error = report["probability"][0], report["standard_error"][0]
    smooth = (400 * p + 0.5) / 401
    assert error == pytest.approx(math.sqrt(smooth * (1 - smooth) / 400))
    assert "400 reads, seed 5" in run(*arguments).stdout


def test_sample_prints_reads(problem: str) -> None:
    arguments = ("sample", problem, "--samples", "--num-reads", "50", "seed=5")
    report = run_json(*arguments)
    assert len(report["states"]) == len(report["energy"]) == 50
    for (a, b), energy in zip(report["states"], report["energy"], strict=True):
        assert energy == pytest.approx(-(0.5 * a - b + 0.3 * a * b))
    text = run(*arguments).stdout
    assert text.startswith("Spins in order: 0 1\n")
    count = report["states"].count([-1, -1])
    share = f"{count / 50:.4f}"
    assert any(line.split() == ["--", "-0.8", str(count), share] for line in text.splitlines())
    Path(problem).write_text(f"fields: {[0.0] * 12}\n")
    text = run("sample", problem, "--samples", "--num-reads", "200", "seed=1").stdout
    assert "more states; --json prints every read." in text


def test_sample_takes_backend_options_correlations_and_beta(problem: str) -> None:
    options = ("sampler.max_iterations=1", "sampler.damping=1")
    report = run_json("sample", problem, "sampler.backend=mean_field", *options, "--beta", "2")
    # One undamped iteration from m = 0, then the probability at that point.
    m = [math.tanh(1.0), math.tanh(-2.0)]
    assert report["probability"] == pytest.approx(
        [1 / (1 + math.exp(-2 * (1.0 + 0.6 * m[1]))), 1 / (1 + math.exp(-2 * (-2.0 + 0.6 * m[0])))]
    )
    assert "Pair correlations" in run("sample", problem, "--correlations").stdout
    assert run_json("sample", problem, "--correlations")["correlation"][0][0] == 1


def test_sample_takes_a_configuration_and_overrides(problem: str, tmp_path: Path) -> None:
    slow = ("sampler.max_iterations=1", "sampler.damping=1")
    wanted = run_json("sample", problem, "sampler.backend=mean_field", *slow)["probability"]
    assert wanted != run_json("sample", problem, "sampler.backend=mean_field")["probability"]
    assert run_json("sample", problem, *slow, "sampler.backend=mean_field")["probability"] == wanted
    path = tmp_path / "run.yaml"
    path.write_text("seed: 3\nsampler: {backend: mean_field, max_iterations: 1, damping: 1}\n")
    assert run_json("sample", problem, str(path))["probability"] == wanted
    changed = run_json("sample", problem, str(path), "sampler.max_iterations=2")
    assert changed["probability"] != wanted
    other = run_json("sample", problem, str(path), "sampler.backend=exact")
    assert other["info"]["backend"] == "exact"


def test_config_show_prints_what_loads_to_the_same(tmp_path: Path) -> None:
    result = run("config", "show", "brackets-t8", "model.mode=h")
    path = tmp_path / "resolved.yaml"
    path.write_text(result.stdout)
    expected = load_config("brackets-t8", ["model.mode=h"])
    assert load_config(path) == expected
    assert (
        "  learning_rate: 0.0003  # AdamW learning rate of everything except the couplings." in result.stdout
    )
    bare = {
        line.split(":")[0] for line in result.stdout.splitlines() if "  # " not in line and line[:3].strip()
    }
    assert bare == {"  backend"}
    shown = {key: value for key, value in to_plain(expected).items() if key not in ("fidelity", "anneal")}
    assert run_json("config", "show", "brackets-t8", "model.mode=h") == shown


COMMON = ["seed", "output", "threads"]
TRAINING = [*COMMON, "device", "task", "model", "sampler", "gradient", "training"]


@pytest.mark.parametrize(("words", "keys"), [
    (["fidelity"], [*COMMON, "fidelity"]),
    (["anneal", "seed=3"], [*COMMON, "anneal"]),
    (["anneal", "model.mode=h"], [*COMMON, "model", "anneal"]),
    (["recall-exact"], TRAINING),
    (["recall-exact", "anneal.steps=4"], [*TRAINING, "anneal"]),
    (["anneal.steps=4"], [*COMMON, "anneal"]),
    ([], [*TRAINING, "fidelity", "anneal"]),
], ids=str)  # fmt: skip
def test_config_show_prints_what_the_command_reads(words: list[str], keys: list[str]) -> None:
    text = run("config", "show", *words).stdout
    assert [line.split(":")[0] for line in text.splitlines() if line[0] != " "] == keys
    assert "`" not in text
    assert "None" not in text


def test_config_show_of_a_run_prints_what_training_reads(tmp_path: Path) -> None:
    assert train(tmp_path / "run").exit_code == 0
    assert list(run_json("config", "show", str(tmp_path / "run"))) == TRAINING


def test_config_list_names_the_shipped_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # narrow terminals fold the descriptions
    names = list(shipped_configs())
    assert {"brackets-t8", "shakespeare-t8", "brackets-small"} <= set(names)
    listed = run_json("config", "list")
    assert [row["name"] for row in listed] == names
    text = run("config", "list").stdout
    for row in listed:
        assert 20 <= len(row["description"]) <= 105
        assert re.search(r"\d+ (s|min|h|day)|hours|days", row["time"])
        (line,) = [line for line in text.splitlines() if line.split(" ")[0] == row["name"]]
        assert " ".join(line.split()) == " ".join(row.values())


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[Warmed]:
    """Groups of backends and of layers whose kernels are not compiled here."""
    found = [Warmed("exact", 16, 3.21), Warmed("refine", 0, 0.1)]
    found += [Warmed("attention", 0, 0.1), Warmed("token games", 0, 0.1)]

    def warmed(groups: dict[str, object]) -> Iterator[Warmed]:
        assert list(groups) == [group.group for group in found]
        yield from found

    monkeypatch.setattr(warm_up, "GROUPS", {group.group: None for group in found[:2]})
    monkeypatch.setattr(warm_up, "warm_up", warmed)
    return found


def test_every_group_that_was_compiled_has_its_time(groups: list[Warmed]) -> None:
    result = run("warm-up", "--no-progress")
    assert (result.exit_code, result.stderr) == (0, "")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["exact", "16", "3.2"] in rows
    assert ["all", "16", "3.2"] in rows
    assert "refine" not in result.stdout
    assert "token games" in run("warm-up").stderr  # the progress bar
    assert run_json("warm-up", "--no-progress")["groups"] == [group._asdict() for group in groups]
    groups[0] = Warmed("exact", 0, 0.2)
    assert run("warm-up", "--no-progress").stdout == "Nothing to compile: all kernels are on disk.\n"
