"""What ``diabat sample`` says of the quality of its answers."""

import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import dimod
import pytest
import torch
from cli_runs import run, run_json

from diabat.ising import Ising, from_bqm
from diabat.ising.problem_files import read_problem, write_problem
from diabat.samplers import Samples, sampler
from diabat.samplers.pseudolikelihood import fit_betas
from diabat.samplers.tempering.sampler import TemperingSampler

PROBLEM = """
fields: [0.5, -1.0, 0.3, 0.2, -0.1]
couplings: [[0, 1, 0.8], [1, 2, -1.3], [2, 3, 1.1], [3, 4, 0.6], [0, 4, -0.9]]
"""


@pytest.fixture
def problem(tmp_path: Path) -> str:
    path = tmp_path / "problem.yaml"
    path.write_text(PROBLEM)
    return str(path)


def test_an_exact_answer_is_called_exact_and_no_other(problem: str) -> None:
    assert "Law: the Boltzmann law at beta = 1, exact to rounding.\n" in run("sample", problem).stdout
    report = run_json("sample", problem)
    assert (report["law"], report["exact"], report["diagnostics"]) == ("boltzmann", True, [])
    report = run_json("sample", problem, "--num-reads", "50", "seed=1")
    assert report["exact"] is False
    assert report["largest_standard_error"] == max(report["standard_error"])
    for backend, law in (
        ("mean_field", "the mean-field fixed point, not"),
        ("dqa", "the law of the anneal, not"),
    ):
        text = run("sample", problem, f"sampler.backend={backend}").stdout
        assert f"Law: {law}" in text
        assert "exact to rounding" not in text


def test_a_bad_diagnostic_is_marked(problem: str) -> None:
    cut = ("sampler.backend=mean_field", "sampler.max_iterations=2")
    lines = run("sample", problem, *cut).stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("  converged: ")]
    assert line == "  converged: no (good: yes)  BAD: more max_iterations; couplings may be critical"
    facts = {fact["key"]: fact for fact in run_json("sample", problem, *cut)["diagnostics"]}
    assert (facts["converged"]["ok"], facts["iterations"]["ok"]) == (False, None)
    good = run("sample", problem, "sampler.backend=mean_field").stdout
    assert "converged: yes (good: yes)\n" in good
    assert "BAD" not in good
    alone = ("sampler.backend=tempering", "sampler.num_chains=1")
    lines = run("sample", problem, *alone).stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("  R-hat, largest: ")]
    assert line.startswith("  R-hat, largest: unavailable (good: at most 1.3)  BAD: one chain cannot show")
    assert "  effective samples: unavailable" in lines
    facts = {fact["key"]: fact for fact in run_json("sample", problem, *alone)["diagnostics"]}
    assert (facts["rhat_max"]["value"], facts["rhat_max"]["ok"]) == (None, False)


LABELS: list[Any] = ["c", 7, "a", 2]
FIELDS = dict(zip(LABELS, (0.4, -1.1, 0.9, -0.2), strict=True))
PAIRS = {("c", 7): 0.7, (7, "a"): -0.5, ("a", 2): 1.2}


def _expected(value: Callable[[dict[Any, int]], float]) -> float:
    """The mean of a function of {label: spin} in the law of minimised energies."""
    states = [dict(zip(LABELS, s, strict=True)) for s in product((-1, 1), repeat=4)]
    weights = [math.exp(-_energy(s)) for s in states]
    return sum(w * value(s) for w, s in zip(weights, states, strict=True)) / sum(weights)


def _energy(s: dict[Any, int]) -> float:
    return sum(h * s[a] for a, h in FIELDS.items()) + sum(J * s[a] * s[b] for (a, b), J in PAIRS.items())


@pytest.fixture(params=["json", "yaml", "qubo"])
def named(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """One problem whose spins all have other marginals, and names in no order, in three formats."""
    path = tmp_path / f"p.{request.param}"
    if request.param == "json":
        bqm = dimod.BinaryQuadraticModel(FIELDS, {}, 0.0, "SPIN")
        bqm.add_quadratic_from(PAIRS)
        write_problem(path, *from_bqm(bqm))
    elif request.param == "yaml":
        couplings = [[a, b, -J] for (a, b), J in PAIRS.items()]
        fields = [-h for h in FIELDS.values()]
        path.write_text(json.dumps({"labels": LABELS, "fields": fields, "couplings": couplings}))
    else:
        bqm = dimod.BinaryQuadraticModel.from_ising(FIELDS, PAIRS)
        Q, offset = bqm.to_qubo()
        path.write_text(json.dumps({"qubo": [[*pair, value] for pair, value in Q.items()], "offset": offset}))
    return str(path)


def test_every_number_goes_with_its_label(named: str) -> None:
    """Marginals, comparison, correlations, reads and the lowest state, in the document and in the tables."""
    binary = named.endswith("qubo")
    answer = run_json("sample", named, "--correlations")
    labels = answer["labels"]
    assert sorted(map(str, labels)) == sorted(map(str, LABELS))
    assert binary or labels == LABELS
    want = {label: (1 + _expected(lambda s, at=label: s[at])) / 2 for label in LABELS}  # type: ignore[misc]
    assert len({round(p, 2) for p in want.values()}) == len(LABELS)
    assert dict(zip(labels, answer["probability"], strict=True)) == pytest.approx(want)
    for row, a in zip(answer["correlation"], labels, strict=True):
        for got, b in zip(row, labels, strict=True):
            found = (lambda s: (s[a] + 1) * (s[b] + 1) / 4) if binary else (lambda s: s[a] * s[b])  # noqa: B023
            assert got == pytest.approx(_expected(found))
    beside = run_json("sample", named, "sampler.backend=mean_field", "--compare", "exact")
    assert dict(zip(labels, beside["comparison"]["probability"], strict=True)) == pytest.approx(want)
    text = run("sample", named).stdout
    shown = [
        line.split()[:2]
        for line in text.splitlines()
        if line.split()[:1] and line.split()[0] in map(str, LABELS)
    ]
    assert {label: float(p) for label, p in shown} == pytest.approx(
        {str(a): p for a, p in want.items()}, abs=1e-5
    )

    reads = run_json("sample", named, "--samples", "--num-reads", "50", "seed=1")
    assert "weights" not in reads
    low = 0 if binary else -1
    for state, energy in zip(reads["states"], reads["energy"], strict=True):
        s = {a: 1 if value == 1 else -1 for a, value in zip(reads["labels"], state, strict=True)}
        assert set(state) <= {low, 1}
        assert energy == pytest.approx(_energy(s), abs=1e-6)
    best = min((dict(zip(LABELS, s, strict=True)) for s in product((-1, 1), repeat=4)), key=_energy)
    lowest = run_json("sample", named, "--lowest", "seed=1")
    assert dict(zip(lowest["labels"], lowest["state"], strict=True)) == {
        a: max(s, low) for a, s in best.items()
    }
    lines = run("sample", named, "--lowest", "seed=1").stdout.splitlines()
    order = next(line.split(": ")[1].split() for line in lines if " in order: " in line)
    (state,) = {
        word for line in lines for word in line.split()[:1] if len(word) == 4 and set(word) <= set("01-+")
    }
    assert {a: c in "1+" for a, c in zip(order, state, strict=True)} == {
        str(a): s > 0 for a, s in best.items()
    }


def test_reads_come_with_their_diagnostics(problem: str) -> None:
    arguments = ("sample", problem, "--samples", "--num-reads", "8", "sampler.backend=tempering")
    assert "swap rate, smallest" in run(*arguments).stdout
    assert [fact["key"] for fact in run_json(*arguments)["diagnostics"]] == ["swap_rates"]


@pytest.mark.parametrize("words", [
    ("--samples",),
    ("--num-reads", "1000", "--correlations"),
    ("sampler.backend=refine", "sampler.sampler=exact", "sampler.sweeps=1"),
])  # fmt: skip
def test_reads_come_with_their_betas(problem: str, words: tuple[str, ...]) -> None:
    """1000 reads of the law at beta = 2: 1 within 4.5 errors (alpha 1e-5)."""
    betas = run_json("sample", problem, "--beta", "2", *words)["betas"]
    assert list(betas) == ["beta_h", "beta_J", "beta_K"]
    assert betas["beta_K"] == {"value": None, "standard_error": None}
    for name in ("beta_h", "beta_J"):
        assert 0 < betas[name]["standard_error"] < 0.3
        assert betas[name]["value"] == pytest.approx(1, abs=4.5 * betas[name]["standard_error"])
    (line,) = (
        line for line in run("sample", problem, "--beta", "2", *words).stdout.splitlines() if "Betas" in line
    )
    texts = [f"{k} {betas[k]['value']:.3f} ± {betas[k]['standard_error']:.2g}" for k in ("beta_h", "beta_J")]
    assert line == f"Betas of the reads, 1 is the law: {', '.join(texts)}."


def test_the_betas_are_those_of_the_reads_that_are_printed(problem: str) -> None:
    words = ("sampler.backend=dqa", "--num-reads", "300", "seed=4")
    reads, marginals = run_json("sample", problem, "--samples", *words), run_json("sample", problem, *words)
    fit = fit_betas(read_problem(problem).ising, torch.tensor(reads["states"]))
    assert reads["betas"] == marginals["betas"]
    found = [reads["betas"]["beta_h"][key] for key in ("value", "standard_error")]
    assert found == pytest.approx([fit.field, fit.field_error])
    assert reads["betas"]["beta_J"]["value"] == pytest.approx(fit.coupling)
    drawn = sampler("dqa").moments(read_problem(problem).ising, num_reads=300, seed=4)
    assert marginals["probability"] == pytest.approx(drawn.probability.tolist())


@pytest.mark.parametrize("words", [("--samples",), ()])
def test_a_prediction_that_the_reads_contradict_is_not_called_good(
    problem: str, words: tuple[str, ...]
) -> None:
    words = ("sampler.backend=dqa", "--beta", "2", "--num-reads", "2000", "seed=4", *words)
    fit = run_json("sample", problem, *words)["betas"]
    assert fit["beta_h"]["value"] + 3 * fit["beta_h"]["standard_error"] > 0.7
    assert fit["beta_J"]["value"] + 3 * fit["beta_J"]["standard_error"] < 0.7
    (line,) = (line for line in run("sample", problem, *words).stdout.splitlines() if "the reads: 1" in line)
    told = f"beta_J {fit['beta_J']['value']:.3f} ± {fit['beta_J']['standard_error']:.2g}"
    assert line == f"  predicted beta of the reads: 1, but the reads have {told}"


def test_a_prediction_that_the_reads_do_not_contradict_is_called_good(problem: str, tmp_path: Path) -> None:
    weak = tmp_path / "weak.yaml"
    weak.write_text("fields: [0.3, -0.2, 0.1]\ncouplings: [[0, 1, 0.1], [1, 2, -0.1]]\n")
    good = "predicted beta of the reads: 1 (good: at least 0.7 and at most 1.4)\n"
    near = ("sample", str(weak), "sampler.backend=dqa", "--num-reads", "2000", "seed=4")
    few = ("sample", problem, "--beta", "2", "sampler.backend=dqa", "--num-reads", "40", "seed=4")
    for words in (near, few):
        assert good in run(*words).stdout + "\n"
    coupling = run_json(*few)["betas"]["beta_J"]  # which so few reads do not tell from the limit
    assert coupling["value"] < 0.7 < coupling["value"] + 3 * coupling["standard_error"]
    strong = ("sampler.backend=dqa", "sampler.calibration=none", "--num-reads", "2000")
    assert "BAD: give calibration='predicted', or betas" in run("sample", str(weak), *strong).stdout


def test_what_has_no_reads_or_no_fit_has_no_betas(problem: str, tmp_path: Path) -> None:
    for words in ((), ("sampler.backend=tempering",)):  # which averages over sweeps
        assert run_json("sample", problem, *words)["betas"] is None
        assert "Betas" not in run("sample", problem, *words).stdout
    path = tmp_path / "free.yaml"
    path.write_text("fields: [0.0, 0.0]\n")
    assert run_json("sample", str(path), "--num-reads", "9")["betas"] is None
    J = torch.diag(torch.tensor([0.5, 0.7, 0.6]), 1)
    held = Ising([0.4, 0.0, -0.2, 0.3], J + J.T).clamp([0, 1, 0, 0])
    held.save(tmp_path / "held.safetensors")
    fit = run_json("sample", str(tmp_path / "held.safetensors"), "--num-reads", "4000")["betas"]["beta_h"]
    assert fit["value"] == pytest.approx(1, abs=4.5 * fit["standard_error"])


def test_compare_shows_another_backend_with_the_answer(problem: str) -> None:
    exact = run_json("sample", problem)["probability"]
    arguments = ("sample", problem, "sampler.backend=dqa", "--compare", "exact")
    report = run_json(*arguments)
    beside = report["comparison"]
    errors = [abs(p - q) for p, q in zip(report["probability"], exact, strict=True)]
    assert beside["probability"] == pytest.approx(exact)
    assert [abs(d) for d in beside["difference"]] == pytest.approx(errors)
    assert (beside["largest"], beside["mean"]) == (pytest.approx(max(errors)), pytest.approx(sum(errors) / 5))
    assert (beside["backend"], beside["exact"]) == ("exact", True)
    text = run(*arguments).stdout
    assert "P(+1), exact" in text
    assert f"largest {max(errors):.2g}" in text


def test_invisible_spins_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "hidden.yaml"
    path.write_text("fields: [0.5, 3.0, 0.2]\ncouplings: [[0, 2, 1.0]]\nvisible: [true, false, true]\n")
    report = run_json("sample", str(path), "sampler.backend=mean_field", "--compare", "exact")
    differences = [abs(report["comparison"]["difference"][j]) for j in (0, 2)]
    assert report["comparison"]["mean"] == pytest.approx(sum(differences) / 2)
    text = run("sample", str(path), "--compare", "mean_field").stdout  # another law: no error
    assert "difference" in text
    assert "whose law is the mean-field fixed point" in text


def test_estimated_temperatures_are_printed(problem: str) -> None:
    chip = ("topology_type=zephyr", "topology_shape=[2,4]", "beta=10")
    words = [
        "backend=dimod",
        "sampler=diabat.samplers.dimod.tiled:TiledComposite",
        "options.child=diabat.testing.strict_qpu:StrictMockQPU",
        "options.spins=5",
        "beta=estimate",
    ]
    words += [f"options.child_options.{option}" for option in chip]
    text = run("sample", problem, "--num-reads", "50", *(f"sampler.{word}" for word in words)).stdout
    (line,) = (
        line for line in text.splitlines() if line.startswith("Estimated beta_h, beta_J of the device: ")
    )
    assert [float(x) for x in line.split(": ")[1].rstrip(".").split(", ")] == pytest.approx([10, 10], rel=0.1)


def test_a_dash_reads_standard_input(problem: str) -> None:
    piped = run("sample", "-", "--json", piped=PROBLEM)
    assert piped.exit_code == 0, piped.stderr
    assert json.loads(piped.stdout)["probability"] == run_json("sample", problem)["probability"]
    empty = run("sample", "-", piped="")
    assert (empty.exit_code, empty.stderr) == (1, "Error: 'standard input': the file is empty.\n")


def test_lowest_anneals_unless_told_how_the_chains_run(problem: str) -> None:
    asked = ("sample", problem, "--lowest", "sampler.backend=tempering")
    annealed, tempered = run_json(*asked), run_json(*asked, "sampler.num_replicas=8")
    assert (annealed["info"]["schedule"], annealed["law"]) == ("auto", "annealed")
    assert ("schedule" in tempered["info"], tempered["law"], tempered["of"]) == (False, "boltzmann", "sweeps")
    given = run_json(*asked, "sampler.schedule=[0.1,1.0,10.0]")
    assert given["info"]["schedule"] == [0.1, 1.0, 10.0]
    assert annealed["state"] == tempered["state"] == given["state"]


def test_any_backend_that_tracks_the_lowest_state_is_asked_to(
    problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It need not be called tempering, nor anneal."""
    seen: list[dict[str, Any]] = []

    class Searching(TemperingSampler):
        name = "searching"

        def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
            seen.append(self.options)
            return super()._sample(ising, num_reads, seed)

    monkeypatch.setattr("diabat.samplers.registry.sampler", lambda name, **options: Searching(**options))
    monkeypatch.setattr("diabat.lab.runs.build.sampler", lambda name, **options: Searching(**options))
    report = run_json("sample", problem, "--lowest", "sampler.backend=tempering")
    assert (seen[0]["track_lowest"], seen[0]["schedule"], report["of"]) == (True, "auto", "sweeps")


@pytest.mark.parametrize(("backend", "place"), [("tempering", "sweeps"), ("exact", "reads")])
def test_lowest_is_the_ground_state(problem: str, backend: str, place: str) -> None:
    """Of 32 states, by enumeration; the energy counts fields and couplings with their signs."""
    report = run_json("sample", problem, "--lowest", f"sampler.backend={backend}", "seed=1")
    assert report["of"] == place
    pairs = {(0, 1): 0.8, (1, 2): -1.3, (2, 3): 1.1, (3, 4): 0.6, (0, 4): -0.9}
    h = [0.5, -1.0, 0.3, 0.2, -0.1]

    def energy(s: tuple[int, ...]) -> float:
        fields = sum(a * b for a, b in zip(h, s, strict=True))
        return -fields - sum(J * s[j] * s[k] for (j, k), J in pairs.items())

    best = min(product((-1, 1), repeat=5), key=energy)
    assert report["state"] == list(best)
    assert report["energy"] == pytest.approx(energy(best), rel=1e-6)
    text = run("sample", problem, "--lowest", f"sampler.backend={backend}", "seed=1").stdout
    assert "".join("+" if s > 0 else "-" for s in best) in text


def test_the_cost_of_a_call_is_told_and_counts_the_reads_of_the_configuration(tmp_path: Path) -> None:
    """The reads of a paid call: those of the configuration where the command names none, not those of the class."""
    path = tmp_path / "problem.yaml"
    path.write_text("fields: [0.5, -1.0]\ncouplings: [[0, 1, 0.3]]\n")
    asked = ("sample", str(path), "sampler.backend=dimod", "--num-reads", "30", "--dry-run")
    report = run_json(*asked, "sampler.reads_per_call=20")
    assert (report["submissions"], report["reads"], report["qubits"]) == (2, 30, 2)
    assert "problems: 1; submissions: 1" in run(*asked).stdout
    command = ("sample", str(path), "sampler.backend=dimod", "sampler.num_reads=50")
    for kind, key in (("--dry-run", "reads"), ("--samples", "num_reads"), (None, "num_reads")):
        words = [*command, *filter(None, [kind])]
        assert run_json(*words)[key] == 50
        assert run_json(*words, "--num-reads", "7")[key] == 7
