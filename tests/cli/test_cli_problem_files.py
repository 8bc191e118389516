import itertools
import json
import math
from pathlib import Path
from typing import Any

import dimod
import pytest
import torch
from cli_runs import run, run_json
from dimod.serialization import coo

import diabat
from diabat.checks import ArgumentError
from diabat.ising import Ising
from diabat.problem_files import ProblemFileError, read_problem, write_problem
from diabat.testing.problems import make_problem, with_visible


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def a_bqm() -> dimod.BinaryQuadraticModel:
    return dimod.BinaryQuadraticModel({0: -1.0, 1: 0.25, 2: 0.5}, {(0, 1): 0.5, (1, 2): -0.75}, 0.0, "SPIN")


def as_json(bqm: dimod.BinaryQuadraticModel) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(bqm.to_serializable()))
    return document


FORMATS = {
    "json": lambda bqm: json.dumps(as_json(bqm)),
    "coo": lambda bqm: coo.dumps(bqm, vartype_header=True),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("vartype", ["SPIN", "BINARY"])
def test_dimod_formats_give_the_boltzmann_law_of_the_energy(tmp_path: Path, name: str, vartype: str) -> None:
    bqm = a_bqm().change_vartype(vartype, inplace=False)
    problem = read_problem(write(tmp_path / "p", FORMATS[name](bqm)), beta=0.7)
    assert problem.labels == [0, 1, 2]
    moments = diabat.sampler("exact").moments(problem.ising)
    # Against dimod's own energies, not against the conversion.
    low, high = (-1, 1) if vartype == "SPIN" else (0, 1)
    states = list(itertools.product((low, high), repeat=3))
    weights = [math.exp(-0.7 * bqm.energy(dict(enumerate(s)))) for s in states]
    for j in range(3):
        up = sum(w for w, s in zip(weights, states, strict=True) if s[j] == high) / sum(weights)
        assert float(moments.probability[j]) == pytest.approx(up, abs=2e-6)  # COO text has six decimals


@pytest.mark.parametrize("vartype", ["SPIN", "BINARY"])
def test_sample_answers_in_energies_and_values_of_the_model(tmp_path: Path, vartype: str) -> None:
    """At beta = 0.5 with an offset of 10: every energy is ``bqm.energy``, log Z is log Σ exp(-E/2)."""
    bqm = dimod.BinaryQuadraticModel({"a": 1.0, "b": -2.0}, {("a", "b"): 3.0}, 10.0, vartype)
    path = str(write(tmp_path / "p.json", FORMATS["json"](bqm)))
    values = (-1, 1) if vartype == "SPIN" else (0, 1)
    energies = {
        s: float(bqm.energy(dict(zip("ab", s, strict=True)))) for s in itertools.product(values, repeat=2)
    }
    best = min(energies, key=lambda s: energies[s])
    Z = sum(math.exp(-energy / 2) for energy in energies.values())

    found = run_json("sample", path, "--beta", "0.5", "--correlations")
    assert (found["vartype"], found["beta"]) == (vartype, 0.5)
    assert found["log_partition"] == pytest.approx(math.log(Z))
    mean = sum(math.exp(-e / 2) * a * b for (a, b), e in energies.items()) / Z
    assert found["correlation"][0][1] == pytest.approx(mean)

    asked = ("sample", path, "--beta", "0.5", "seed=1")
    reads = run_json(*asked, "--samples", "--num-reads", "40")
    assert reads["energy"] == pytest.approx([energies[a, b] for a, b in reads["states"]])
    lowest = run_json(*asked, "--lowest")
    assert (tuple(lowest["state"]), lowest["energy"]) == (best, pytest.approx(energies[best]))

    state = "".join(("-+" if vartype == "SPIN" else "01")[value > 0] for value in best)
    text = run(*asked, "--samples").stdout
    assert any(line.split()[:2] == [state, f"{energies[best]:g}"] for line in text.splitlines())
    assert f"{state} {energies[best]:g} reads" in " ".join(run(*asked, "--lowest").stdout.split())
    assert "the Boltzmann law at beta = 0.5" in text
    assert ("P(1)" if vartype == "BINARY" else "P(+1)") in run(*asked).stdout


def test_the_energy_of_yaml_is_that_of_its_numbers(tmp_path: Path) -> None:
    """Whatever its beta is; the offset of the exponent lowers it."""
    path = str(write(tmp_path / "p", "fields: [1, 2]\noffset: 4\nbeta: 3\n"))
    lowest = run_json("sample", path, "--lowest", "seed=1")
    assert (lowest["state"], lowest["energy"], lowest["beta"]) == ([1, 1], -7.0, 3.0)


def test_coo_lines_that_dimod_would_skip_are_read(tmp_path: Path) -> None:
    text = f"# vartype=SPIN\n# a comment\n\n0 0 -1e-3\n0 {'0' * 5000}1 +2.5E-1\n"
    ising = read_problem(write(tmp_path / "p", text)).ising
    assert ising.couplings is not None
    assert ising.fields.tolist() == [1e-3, 0]
    assert ising.couplings.tolist() == [[0, -0.25], [-0.25, 0]]


YAML = """
fields: [0.5, -1, 0]
couplings: [[0, 1, 0.8], [2, 1, -0.3]]
three_body: [[2, 0, 1, 0.1]]
visible: [true, true, false]
offset: 1.5
beta: 2
"""


def test_yaml_is_in_the_convention_of_the_law(tmp_path: Path) -> None:
    ising = read_problem(write(tmp_path / "p.yaml", YAML)).ising
    K = torch.zeros(3, 3, 3, dtype=torch.float64)
    for index in itertools.permutations(range(3)):
        K[index] = 0.2
    J = torch.tensor([[0, 1.6, 0], [1.6, 0, -0.6], [0, -0.6, 0]], dtype=torch.float64)
    expected = Ising(
        torch.tensor([1, -2, 0], dtype=torch.float64), J, torch.tensor([True, True, False]), K, offset=3.0
    )  # beta = 2 folded in
    for name in ("fields", "couplings", "visible", "three_body", "offset"):
        assert torch.equal(getattr(ising, name), getattr(expected, name)), name


def test_beta_of_the_call_replaces_that_of_the_file(tmp_path: Path) -> None:
    assert read_problem(write(tmp_path / "p", YAML), beta=1.0).ising.fields.tolist() == [0.5, -1, 0]


@pytest.mark.parametrize(
    "couplings",
    ["[[0, 0.5, 0], [0.5, 0, 1.5], [0, 1.5, 0]]", "[[0, 1, 0.5], [1, 2, 1.5], [0, 2, 0]]"],
    ids=["matrix", "three triples, of the shape of a matrix"],
)
def test_couplings_as_matrix_and_as_triples(tmp_path: Path, couplings: str) -> None:
    ising = read_problem(write(tmp_path / "p", f"fields: [0, 0, 0]\ncouplings: {couplings}\n")).ising
    assert ising.couplings is not None
    assert ising.couplings.tolist() == [[0, 0.5, 0], [0.5, 0, 1.5], [0, 1.5, 0]]


F3 = "fields: [0, 0, 0]\n"
J4 = "fields: [0, 0]\ncouplings: "


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        (b"\xff\xfe\x00", r"expected text \(dimod JSON, COO or YAML\), got other bytes"),
        ("hello", r"expected dimod JSON, COO text or YAML with the key 'fields', got 'hello'"),
        ("fields: [1\n", r"line 2: did not find expected ',' or '\]'"),
        ("field: [1]", r"field: unknown key\. Did you mean 'fields'\?"),
        ("beta: 1", "fields: expected a list of numbers, got no such key"),
        ("fields: []", "fields: expected a list of at least one number"),
        ("fields: [1, x]", r"fields\[1\]: expected a number, got 'x'"),
        ("fields: [1, true]", r"fields\[1\]: expected a number, got true"),
        ("fields: [[1, 2]]", r"fields\[0\]: expected a number, got \[1, 2\]"),
        ("fields: [.nan]", "fields: expected finite values, got nan at index"),
        ("fields: [1]\noffset: x", "offset: expected a number, got 'x'"),
        ("fields: [1]\nbeta: -1", "beta: expected a finite number > 0, got -1"),
        ("fields: [1]\nbeta: .inf", "beta: expected a finite number > 0, got inf"),
        ("fields: [1]\nvisible: [1]", "visible: expected a list of 1 booleans"),
        (J4 + "3", r"couplings: expected a list of \[i, j, value\], got 3"),
        (J4 + "[[0, 1]]", r"couplings\[0\]: expected \[i, j, value\], got \[0, 1\]"),
        (J4 + "[[0, 2, 1]]", r"couplings\[0\]: expected spins 0 to 1"),
        (J4 + "[[1, 1, 1]]", r"couplings\[0\]: expected 2 different spins, got \[1, 1\]"),
        (J4 + "[[0, 1, 1], [1, 0, 1]]", r"couplings\[1\]: the spins \[0, 1\] are given twice"),
        (J4 + "[[0, 1], [2, 0]]", "couplings: expected a symmetric matrix"),
        (J4 + "[[1, 1], [1, 0]]", "couplings: expected zero where two indices coincide"),
        (F3 + "three_body: [[0, 1, 1, 1]]", r"three_body\[0\]: expected 3 different spins"),
        ("# vartype=SPIN\n0 1 x\n", "line 2: expected 'i j bias', got '0 1 x'"),
        ("# vartype=SPIN\n0 1\n", "line 2: expected 'i j bias', got '0 1'"),
        ("# vartype=SPIN\n-1 1 2\n", "line 2: expected labels >= 0"),
        ("# vartype=SPIN\n1_0 1 2\n", "line 2: expected 'i j bias', got '1_0 1 2'"),
        ("# vartype=SPIN\n0 1 1_0\n", "line 2: expected 'i j bias', got '0 1 1_0'"),
        ("# vartype=SPIN\n0 \u0661 2\n", "line 2: expected 'i j bias'"),
        ("# vartype=SPIN\n0 1 2\n1 0 3\n", "line 3: the bias of 1 0 is given twice"),
        ("# vartype=SPIN\n0 0 2\n0 0 3\n", "line 3: the bias of 0 0 is given twice"),
        (
            f"# vartype=SPIN\n0 {2**63} 1\n",
            r"line 2: expected labels below 2\^63, got '0 9223372036854775808 1'",
        ),
        (f"# vartype=SPIN\n0 {'9' * 5000} 1\n", r"line 2: expected labels below 2\^63"),
        (f"# vartype=SPIN\n0 1{'0' * 30} 1\n", r"line 2: expected labels below 2\^63"),
        ("fields: &a [*a]", "line 1: expected values without aliases"),
        ("# vartype=SPON\n0 1 2\n", "line 1: expected vartype SPIN or BINARY, got 'SPON'"),
        ("# vartype=SPIN\n# vartype=BINARY\n", "line 2: the header is given twice"),
        ("# vartype=SPIN\n", "the model has no variables"),
        ("# vartype=SPIN\n0 0 nan\n", "fields: expected finite values, got nan"),
        ("0 1 0.5\n", "expected the header '# vartype=SPIN' or '# vartype=BINARY'"),
        ('{"type": "BinaryQuad', "not valid JSON at line 1, column 10"),
        ('{"a": 1}', r"expected the JSON of dimod's BinaryQuadraticModel\.to_serializable, got no 'type'"),
        ('{"type": "SampleSet"}', "got type 'SampleSet'"),
        (
            "fields: [1" + "0" * 400 + "]",
            "line 1: expected an integer of 64 bits, got 401 digits",
        ),
        ('{"a":' * 3000, "nested too deeply"),
    ],
)
def test_a_corrupt_file_is_one_sentence_with_its_name(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    path = write(tmp_path / "corrupt", content)
    with pytest.raises(ProblemFileError, match=message) as caught:
        read_problem(path)
    assert str(caught.value).startswith(f"'{path}'")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"linear_biases": [1.0]}, "linear_biases: expected a list of num_variables = 3 entries, got 1"),
        ({"quadratic_head": [0]}, "quadratic_head: expected a list of num_interactions = 2 entries, got 1"),
        ({"quadratic_tail": None}, "quadratic_tail: .* got NoneType"),
        ({"variable_type": "X"}, "corrupt dimod JSON"),
        ({"variable_labels": ["a", "a", "b"]}, "corrupt dimod JSON"),
        ({"linear_biases": [1, 2, "x"]}, "corrupt dimod JSON"),
        ({"linear_biases": [1, 2, float("nan")]}, "expected finite numbers, got NaN"),
        ({"quadratic_head": [-1, 1]}, r"quadratic_head\[0\]: expected a variable 0 to 2, got -1"),
        ({"quadratic_tail": [1, 3]}, r"quadratic_tail\[1\]: expected a variable 0 to 2, got 3"),
        ({"quadratic_tail": [1, 2**64]}, r"quadratic_tail\[1\]: expected a variable 0 to 2, got 18446744073"),
        ({"quadratic_tail": [1, True]}, r"quadratic_tail\[1\]: expected a variable 0 to 2, got True"),
        ({"quadratic_tail": [0, 2]}, r"quadratic_tail\[0\]: expected another variable than 0, got it"),
        ({"quadratic_head": [1, 0]}, r"quadratic_tail\[0\]: expected another variable than 1, got it"),
        (
            {"quadratic_head": [0, 1], "quadratic_tail": [1, 0]},
            r"quadratic_head\[1\]: the variables \[0, 1\] are given twice",
        ),
        ({"version": {"bqm_schema": "4.0.0"}}, "version: expected bqm_schema 2.0.0 or 3.0.0, got '4.0.0'"),
        ({"version": None}, "version: expected bqm_schema 2.0.0 or 3.0.0, got None"),
        ({"use_bytes": True}, "use_bytes: expected false, got True"),
        ({"num_variables": 3.0}, "num_variables: expected an integer, got 3.0"),
        (
            {"variable_labels": [0, 1, 2**63]},
            r"variable_labels\[2\]: expected integers below 2\^63, got 9223",
        ),
        ({"variable_labels": [0, 1, ["a", 2**99]]}, r"variable_labels\[2\]: expected integers below 2\^63"),
    ],
)
def test_altered_json_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "p.json", json.dumps(as_json(a_bqm()) | change))
    with pytest.raises(ProblemFileError, match=message):
        read_problem(path)


def test_a_key_of_json_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    text = json.dumps(as_json(a_bqm())).replace('"offset"', '"num_variables": 3, "offset"')
    with pytest.raises(ProblemFileError, match="the key 'num_variables' is given twice"):
        read_problem(write(tmp_path / "p.json", text))


def test_more_spins_than_memory_holds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line per spin holds couplings as edges, K is an array."""
    monkeypatch.setattr("diabat.compute.memory.available_bytes", lambda: 1 << 29)
    lines = "".join(f"{j} {j} 1\n" for j in range(50000))
    assert read_problem(write(tmp_path / "p", f"# vartype=SPIN\n{lines}")).ising.edges is not None
    text = f"fields: {[0] * 300}\nthree_body: []\n"
    with pytest.raises(ProblemFileError, match=r"three_body of 300 spins need 0.603 GiB of memory"):
        read_problem(write(tmp_path / "p", text))


def test_paths_that_are_not_files(tmp_path: Path) -> None:
    with pytest.raises(ProblemFileError, match=r"nothing': no such file\."):
        read_problem(tmp_path / "nothing")
    with pytest.raises(ProblemFileError, match=r"expected a file, got a folder\."):
        read_problem(tmp_path)
    with pytest.raises(ProblemFileError, match=r"beta: expected a finite number > 0, got nan\."):
        read_problem(tmp_path, beta=float("nan"))


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("suffix", [".json", ".coo", ".yaml", ".YML"])
def test_what_is_written_is_read_back_exactly(tmp_path: Path, suffix: str, sparse: bool) -> None:
    """Every bit of h and J, edges as edges."""
    n = 30 if sparse else 5
    pairs = [(j, j + 1) for j in range(n - 1)]
    generator = torch.Generator().manual_seed(0)
    h, J = (
        10.0 ** torch.randint(-9, 9, (k,), generator=generator)
        * torch.randn(k, generator=generator, dtype=torch.float64)
        for k in (n, n - 1)
    )
    ising = Ising(h, diabat.Edges(pairs, J), offset=None if suffix == ".coo" else h[0] / 3)
    path = tmp_path / f"p{suffix}"
    write_problem(path, ising if sparse else ising.dense())
    back = read_problem(path)
    assert back.labels == list(range(n))
    assert (back.ising.edges is not None) is sparse
    assert torch.equal(back.ising.fields, h)
    assert back.ising.offset == ising.offset
    assert back.ising.couplings is not None
    assert ising.couplings is not None
    assert torch.equal(back.ising.couplings, ising.couplings)


def test_labels_three_body_terms_and_visibility_are_written(tmp_path: Path) -> None:
    ising = with_visible(make_problem((), 4, seed=1, three_body=0.5), torch.tensor([True, False, True, True]))
    write_problem(tmp_path / "p.yaml", ising)
    back = read_problem(tmp_path / "p.yaml").ising
    for name in ("fields", "couplings", "three_body", "visible"):
        assert torch.equal(getattr(back, name), getattr(ising, name))
    plain = make_problem((), 3, seed=1)
    names: list[tuple[str, list[Any]]] = [(".json", ["a", 7, (1, 2)]), (".coo", [5, 0, 7])]
    for suffix, labels in names:
        write_problem(tmp_path / f"p{suffix}", plain, labels)
        assert set(read_problem(tmp_path / f"p{suffix}").labels) == set(labels)
    write_problem(tmp_path / "p.yaml", make_problem((), 3, seed=1, lead="none"))
    assert read_problem(tmp_path / "p.yaml").ising.num_spins == 3


@pytest.mark.parametrize(
    ("name", "ising", "labels", "message"),
    [
        ("p.txt", make_problem((), 3), None, r"path: expected a name that ends in \.json, .*, got 'p\.txt'"),
        ("p.coo", make_problem((), 3), ["a", 1, 2], "labels: expected integers >= 0 for COO text, got 'a'"),
        (
            "p.coo",
            Ising([1.0], offset=2.5),
            None,
            r"offset: expected None for COO text, got 2\.5; use \.json",
        ),
        ("p.yaml", make_problem((), 3), [1, 2, 3], r"labels: expected None or 0 \.\. n - 1 for YAML"),
        ("p.json", make_problem((2,), 3), None, r"fields: expected one problem \[n\], got a batch \[2, 3\]"),
        ("p.json", make_problem((), 3, three_body=0.1), None, "three_body: expected None"),
    ],
)
def test_what_a_format_cannot_hold_is_not_written(
    tmp_path: Path, name: str, ising: Ising, labels: Any, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        write_problem(tmp_path / name, ising, labels)
    assert not list(tmp_path.iterdir())
