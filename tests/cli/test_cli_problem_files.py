import io
import itertools
import json
import math
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import dimod
import numpy as np
import pandas
import pytest
import torch
import yaml
from cli_runs import run, run_json
from dimod.serialization import coo

import diabat
from diabat.checks import ArgumentError
from diabat.ising import Ising, from_qubo
from diabat.ising.problem_files import ProblemFileError, is_problem, read_problem, write_problem
from diabat.testing.problems import make_problem, with_visible


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def a_bqm() -> dimod.BinaryQuadraticModel:
    return dimod.BinaryQuadraticModel({0: -1.0, 1: 0.25, 2: 0.5}, {(0, 1): 0.5, (1, 2): -0.75}, 0.0, "SPIN")


def as_json(bqm: dimod.BinaryQuadraticModel) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(bqm.to_serializable()))
    return document


def as_file(model: Any, **options: Any) -> bytes:
    with model.to_file(**options) as file:
        content: bytes = file.read()
    return content


def as_dictionary(bqm: dimod.BinaryQuadraticModel) -> dict[str, Any]:
    linear = {str(name): float(bias) for name, bias in bqm.linear.items()}
    quadratic = {f"{a},{b}": float(bias) for (a, b), bias in bqm.quadratic.items()}
    constants = {"vartype": bqm.vartype.name, "offset": float(bqm.offset)}
    return {"linear": linear, "quadratic": quadratic, **constants}


FORMATS: dict[str, Any] = {
    "json": lambda bqm: json.dumps(as_json(bqm)),
    "coo": lambda bqm: coo.dumps(bqm, vartype_header=True),
    "bqm 2": lambda bqm: as_file(bqm),
    "bqm 1, float32": lambda bqm: as_file(dimod.BinaryQuadraticModel(bqm, dtype=np.float32), version=1),
    "dictionary": lambda bqm: json.dumps(as_dictionary(bqm)),
    "yaml": lambda bqm: yaml.safe_dump(as_dictionary(bqm)),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("vartype", ["SPIN", "BINARY"])
def test_dimod_formats_give_the_boltzmann_law_of_the_energy(tmp_path: Path, name: str, vartype: str) -> None:
    bqm = a_bqm().change_vartype(vartype, inplace=False)
    problem = read_problem(write(tmp_path / "p", FORMATS[name](bqm)), beta=0.7)
    assert problem.labels == [0, 1, 2]
    assert problem.binary is (vartype == "BINARY")
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


Q3 = {(0, 0): 1.0, (0, 1): -2.0, (1, 0): 0.5, (2, 1): 4.0, (2, 2): -1.5}
QUBOS: dict[str, Any] = {
    "commas": {f"{a},{b}": value for (a, b), value in Q3.items()},
    "blanks": {f"{a} {b}": value for (a, b), value in Q3.items()},
    "tuples": {str(pair): value for pair, value in Q3.items()},
    "rows": [[a, b, value] for (a, b), value in Q3.items()],
    "rows of strings": [[str(a), str(b), value] for (a, b), value in Q3.items()],
}


@pytest.mark.parametrize("dump", [json.dumps, yaml.safe_dump])
@pytest.mark.parametrize("form", QUBOS)
def test_a_qubo_is_minimised(tmp_path: Path, form: str, dump: Any) -> None:
    """Energies are xᵀ Q x of all bits, both directions of a pair added, and those of from_qubo."""
    path = write(tmp_path / "p", dump({"qubo": QUBOS[form], "offset": 0.25, "beta": 2}))
    problem, (ising, labels) = read_problem(path), from_qubo(Q3, offset=0.25, beta=2.0)
    assert (problem.labels, problem.beta, problem.binary) == (labels, 2.0, True)
    for x in itertools.product((0, 1), repeat=3):
        spins = torch.tensor([2 * x[int(str(label))] - 1 for label in problem.labels])
        energy = 0.25 + sum(value * x[a] * x[b] for (a, b), value in Q3.items())
        assert float(problem.energy(spins)) == pytest.approx(energy)
        assert float(problem.ising.energy(spins)) == pytest.approx(float(ising.energy(spins)))
    assert read_problem(path, beta=1.0).beta == 1.0


@pytest.mark.parametrize(("document", "names"), [
    ({"h": {"a": 1.0, "b": -2.0}, "J": {"a,c": 3.0}}, ("a", "b", "c")),
    ({"h": [1.0, -2.0], "J": [[0, 2, 3.0]]}, (0, 1, 2)),
    ({"h": {"b": -2, "a": 1}, "J": {"('c', 'a')": 3}}, ("a", "b", "c")),
    ({"J": [[0, 2, 3], [0, 1, 0], [1, 2, 0]], "h": [1, -2, 0]}, (0, 1, 2)),
    ({"J": [["a b", "c", 3.0]], "h": {"b": -2.0, "a b": 1}}, ("a b", "b", "c")),
])  # fmt: skip
def test_h_and_j_are_minimised(tmp_path: Path, document: dict[str, Any], names: tuple[Any, ...]) -> None:
    """E = s_0 - 2 s_1 + 3 s_0 s_2."""
    problem = read_problem(write(tmp_path / "p", json.dumps(document)))
    for state in itertools.product((-1, 1), repeat=3):
        s = dict(zip(names, state, strict=True))
        spins = torch.tensor([s[name] for name in problem.labels])
        assert float(problem.energy(spins)) == state[0] - 2 * state[1] + 3 * state[0] * state[2]


def test_coo_lines_that_dimod_would_skip_are_read(tmp_path: Path) -> None:
    text = f"# vartype=SPIN\n# a comment\n\n0 0 -1e-3\n0 {'0' * 5000}1 +2.5E-1\n"
    ising = read_problem(write(tmp_path / "p", text)).ising
    assert ising.couplings is not None
    assert ising.fields.tolist() == [1e-3, 0]
    assert ising.couplings.tolist() == [[0, -0.25], [-0.25, 0]]


@pytest.mark.parametrize(
    "header",
    [
        "# vartype=SPIN, offset=42",
        "# vartype: SPIN\n# offset = +4.2e1 (of the cut)",
        "# made by hand\n\n# offset: 42; VARTYPE=SPIN",
    ],
)
def test_coo_offsets_in_a_comment_count(tmp_path: Path, header: str) -> None:
    problem = read_problem(
        write(tmp_path / "p", f"{header}\n0 0 1\n0 1 1\n# from https://some.where/a?b=1, by me: no number\n")
    )
    assert problem.energy(torch.tensor([1, 1])) == 44
    assert problem.labels == [0, 1]


def unsigned(data: bytes) -> bytes:
    """The file of version 1 as dimod 0.9 wrote it: neighbours begin at numbers of 64 bits, all without a sign."""
    size = int.from_bytes(data[10:14], "little")
    header = json.loads(data[14 : 14 + size])
    n = header["shape"][0]
    bias = np.dtype(header["dtype"])
    linear = np.frombuffer(data, [("n", "<i4"), ("bias", bias)], n, 14 + size + bias.itemsize)
    wide = linear.astype([("n", "<u8"), ("bias", bias)])
    text = json.dumps(header | {"itype": "uint32", "ntype": "uint64", "type": "AdjVectorBQM"}).encode()
    begin = 14 + size + bias.itemsize
    head = data[:10] + len(text).to_bytes(4, "little") + text
    return head + data[14 + size : begin] + wide.tobytes() + data[begin + linear.nbytes :]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_files_of_older_releases_of_dimod_are_read(tmp_path: Path, kind: Any) -> None:
    bqm = dimod.BinaryQuadraticModel(
        a_bqm().relabel_variables({0: "a", 1: ("b", 2)}, inplace=False), dtype=kind
    )
    content = unsigned(as_file(bqm, version=1))
    assert dimod.BinaryQuadraticModel.from_file(content) == bqm
    problem, (ising, labels) = read_problem(write(tmp_path / "p", content)), diabat.ising.from_bqm(bqm)
    assert problem.labels == labels
    assert torch.equal(problem.ising.fields, ising.fields)
    assert problem.ising.couplings is not None
    assert ising.couplings is not None
    assert torch.equal(problem.ising.couplings, ising.couplings)


def test_a_file_of_qbsolv_is_minimised(tmp_path: Path) -> None:
    """Nodes of couplers need no line of their own; comments stand anywhere, and may hold the constant."""
    text = "c offset=0.25\nc seed=3, id: 7\np qubo 0 10 2 3\nc a, b\n7 7 -1.5\n0 0 1\n0 1 -1.5\n1 7 4\nc\n9 0 1e-1\n"
    problem = read_problem(write(tmp_path / "p", text))
    assert (problem.labels, problem.binary) == ([7, 0, 1, 9], True)
    for x in itertools.product((0, 1), repeat=4):
        bits = dict(zip(problem.labels, x, strict=True))
        energy = (
            0.25
            - 1.5 * bits[7]
            + bits[0]
            - 1.5 * bits[0] * bits[1]
            + 4 * bits[1] * bits[7]
            + 0.1 * bits[9] * bits[0]
        )
        assert float(problem.energy(2 * torch.tensor(x) - 1)) == pytest.approx(energy)


def test_the_energy_of_a_graph_is_minus_its_cut(tmp_path: Path) -> None:
    """Vertices without an edge are spins, too."""
    edges = {(1, 2): 1.0, (4, 2): -1.0, (1, 4): 2.5}
    text = "5 3 \n" + "".join(f"{i} {j} {w:g} \n" for (i, j), w in edges.items()) + "\n"
    path = write(tmp_path / "p", text)
    problem = read_problem(path)
    assert (problem.labels, problem.binary) == ([1, 2, 3, 4, 5], False)
    for s in itertools.product((-1, 1), repeat=5):
        cut = sum(w for (i, j), w in edges.items() if s[i - 1] != s[j - 1])
        assert float(problem.energy(torch.tensor(s))) == -cut
    assert run_json("sample", str(path), "--lowest", "seed=1")["energy"] == -3.5


@pytest.mark.parametrize("names", [["a", "b", "c"], [5, 2, 9], ["1", 1, 0]])
def test_spins_of_yaml_have_names(tmp_path: Path, names: list[Any]) -> None:
    a, b, c = map(json.dumps, names)
    text = f"labels: [{a}, {b}, {c}]\nfields: [1, 2, 3]\ncouplings: [[{c}, {a}, 0.5], [{b}, {c}, 4], [{a}, {b}, 2]]\n"
    text += f"three_body: [[{b}, {c}, {a}, 8]]\n"
    problem = read_problem(write(tmp_path / "p", text))
    assert problem.labels == names
    assert problem.ising.couplings is not None
    assert problem.ising.couplings.tolist() == [[0, 2, 0.5], [2, 0, 4], [0.5, 4, 0]]
    write_problem(tmp_path / "q.yaml", problem.ising, problem.labels)
    again = read_problem(tmp_path / "q.yaml")
    assert again.labels == names
    for name in ("fields", "couplings", "three_body"):
        assert torch.equal(getattr(again.ising, name), getattr(problem.ising, name))


def test_labels_keep_the_order_of_columns_or_of_their_first_appearance(tmp_path: Path) -> None:
    frame = pandas.DataFrame([[1.0, 2.0], [0.0, 3.0]], columns=["z", "a"])
    assert from_qubo(frame)[1] == ["z", "a"]
    assert from_qubo({("z", "b"): 1.0, ("a", "a"): 1.0, ("b", "c"): 1.0})[1] == ["z", "b", "a", "c"]
    assert Ising.from_dict({"z": 1.0, "b": 0.0}, {("c", "a"): 1.0, ("z", "d"): 1.0})[1] == [
        "z",
        "b",
        "c",
        "a",
        "d",
    ]
    for text, labels in (
        ('{"qubo": {"z,b": 1, "a,a": 1, "b,c": 1}}', ["z", "b", "a", "c"]),
        ('{"J": {"c,a": 1, "z,d": 1}, "h": {"z": 1, "b": 0}}', ["z", "b", "c", "a", "d"]),
        ('{"quadratic": [["c", "a", 1]], "linear": {"z": 1}, "vartype": "SPIN"}', ["z", "c", "a"]),
        ("# vartype=SPIN\n5 2 1\n9 9 1\n0 5 1\n", [5, 2, 9, 0]),
        ("p qubo 0 9 1 2\n5 2 1\n8 8 1\n0 5 1\n", [5, 2, 8, 0]),
    ):
        assert read_problem(write(tmp_path / "p", text)).labels == labels


def linked(bqm: Any) -> dict[str, Any]:
    """A document of bqpjson, with a scale of 0.5."""
    pairs = [{"id_tail": a, "id_head": b, "coeff": 2 * w} for (a, b), w in bqm.quadratic.items()]
    return {
        "version": "1.0.0",
        "id": 1,
        "metadata": {},
        "variable_ids": list(bqm.variables),
        "variable_domain": "spin" if bqm.vartype.name == "SPIN" else "boolean",
        "scale": 0.5,
        "offset": 2 * bqm.offset,
        "linear_terms": [{"id": v, "coeff": 2 * w} for v, w in bqm.linear.items() if w],
        "quadratic_terms": pairs,
    }


@pytest.mark.parametrize("vartype", ["SPIN", "BINARY"])
@pytest.mark.parametrize("kind", ["LP", "bqpjson"])
def test_the_lines_that_convert_other_formats_are_right(tmp_path: Path, kind: str, vartype: str) -> None:
    """They stand in the refusal, and are run here."""
    bqm = dimod.BinaryQuadraticModel({4: 1.0, 2: 0.0, 7: -2.0}, {(2, 4): 0.5}, 1.25, vartype)
    if kind == "bqpjson":
        content = json.dumps(linked(bqm))
    else:
        bqm = bqm.change_vartype("BINARY").relabel_variables({v: f"x{v}" for v in (2, 4, 7)})
        content = dimod.lp.dumps(dimod.CQM.from_bqm(bqm))
    path = write(tmp_path / "p", content)
    with pytest.raises(ProblemFileError, match=f"got (an )?{kind}( file)?: ") as caught:
        read_problem(path)
    code = str(caught.value).split(kind)[1].partition(": ")[2].rstrip(".")
    names: dict[str, Any] = {
        "FILE": str(path),
        "dimod": dimod,
        "json": json,
        "diabat": diabat,
        "open": io.open,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        exec(code, names)
    ising, labels = names["problem"], names["labels"]
    assert set(labels) == set(bqm.variables)
    for s in itertools.product((-1, 1), repeat=3):
        values = s if bqm.vartype.name == "SPIN" else [(x + 1) // 2 for x in s]
        assert float(ising.energy(s)) == pytest.approx(bqm.energy(dict(zip(labels, values, strict=True))))


def test_tables_are_read_as_their_refusal_says(tmp_path: Path) -> None:
    square = write(tmp_path / "a.csv", ",a,b\na,1,-2\nb,0,0.5\n")
    rows = write(tmp_path / "b.csv", "i,j,value\na,a,1\na,b,-2\nb,b,0.5\n")
    one = from_qubo(pandas.read_csv(square, index_col=0))
    two = from_qubo(pandas.read_csv(rows).set_index(["i", "j"])["value"].to_dict())
    assert one[1] == two[1] == ["a", "b"]
    assert torch.equal(one[0].fields, two[0].fields)


@pytest.mark.parametrize(
    "line", ["Minimize\n obj: x\nEnd", "\\ a comment\nMaximize obj: x\nEnd", "min\n x0 + x1\nEnd"]
)
def test_lp_is_recognised(tmp_path: Path, line: str) -> None:
    with pytest.raises(ProblemFileError, match="got an LP file"):
        read_problem(write(tmp_path / "p", line))


def test_what_is_a_problem_and_what_a_configuration(tmp_path: Path) -> None:
    """Formats of others are problems, so that they are refused as such."""
    problems = [
        "# a\n# vartype=SPIN\n0 0 1\n",
        "3 1\n1 2 1\n",
        "c\np qubo 0 1 1 0\n0 0 1\n",
        "Minimize\n x\nEnd\n",
        "i,j,value\n",
    ]
    problems += [
        json.dumps(linked(a_bqm())),
        json.dumps(as_json(a_bqm())),
        "labels: [a]\nfields: [1]\n",
        '{"h": {}}',
        "fields: [0.5, -1.0]\ncouplings: [[0, 1, 0.8]]\nbeta: 2\n",
        "# by hand\n\n'fields' : [1]\n",
        "beta: 1\nfields: [1]\n",
        "0 1 0.5\n",
        '{"offset": 0, "type": "BinaryQuadraticModel"}',
        '{"offset": 0, "qubo": {}}',
        "beta: 2\nlinear: {a: 1}\n",
    ]
    Ising([1.0]).save(tmp_path / "saved")
    for problem in (tmp_path / "saved", *(write(tmp_path / "p", text) for text in problems)):
        assert is_problem(problem), problem.read_bytes()
    assert is_problem("-")
    assert not any(is_problem(name) for name in ("fidelity", tmp_path, "x" * 999))
    for text in (
        "",
        "fidelity:\n  fields: 3\n",
        '{"a": {"h": 1}}',
        "fidelity:\n  sizes: [4, 5]\n",
        "# vartype=SPIN\nseed: 1\n",
        '{"seed": 1}',
        "- a, b\n",
        "{}",
        "a: 1, 2\n",
    ):
        assert not is_problem(write(tmp_path / "p", text)), text


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


def test_a_beta_beside_the_json_of_dimod_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "p", json.dumps(as_json(a_bqm()) | {"beta": 2}))
    assert (read_problem(path).beta, read_problem(path).ising.fields.tolist()) == (2.0, [2.0, -0.5, -1.0])


@pytest.mark.parametrize(
    "couplings",
    ["[[0, 0.5, 0], [0.5, 0, 1.5], [0, 1.5, 0]]", "[[0, 1, 0.5], [1, 2, 1.5], [0, 2, 0]]"],
    ids=["matrix", "three triples, of the shape of a matrix"],
)
def test_couplings_as_matrix_and_as_triples(tmp_path: Path, couplings: str) -> None:
    ising = read_problem(write(tmp_path / "p", f"fields: [0, 0, 0]\ncouplings: {couplings}\n")).ising
    assert ising.couplings is not None
    assert ising.couplings.tolist() == [[0, 0.5, 0], [0.5, 0, 1.5], [0, 1.5, 0]]


LINES = (Path(__file__).parent / "problem_refusals.txt").read_text().splitlines()
REFUSALS: list[tuple[Any, str]] = [
    (json.loads(content), message)
    for content, message in (line.split(" | ") for line in LINES if not line.startswith("#"))
]
REFUSALS += [
    (b"\xff\xfe\x00", r"expected JSON, COO, YAML, or a file of dimod or of Ising\.save, got other bytes"),
    (f"# vartype=SPIN\n0 {'9' * 5000} 1\n", r"line 2: expected labels below 2\^63"),
    ('{"a":' * 3000, "nested too deeply"),
]


@pytest.mark.parametrize(("content", "message"), REFUSALS, ids=[str(i) for i in range(len(REFUSALS))])
def test_a_corrupt_file_is_one_sentence_with_its_name(tmp_path: Path, content: Any, message: str) -> None:
    """A text, or keys that replace those of a valid JSON."""
    changed = isinstance(content, dict)
    path = write(tmp_path / "corrupt", json.dumps(as_json(a_bqm()) | content) if changed else content)
    with pytest.raises(ProblemFileError, match=message) as caught:
        read_problem(path)
    assert str(caught.value).startswith(f"'{path}'")
    assert "\n" not in str(caught.value)


def other_bqm(version: int = 2, flips: Mapping[int, int] = MappingProxyType({}), **header: Any) -> bytes:
    """The file of a model with labels whose header, or bytes behind it, are others."""
    bqm = a_bqm().relabel_variables({0: "a", 1: "b"}, inplace=False)
    data = bytearray(as_file(bqm, version=version))
    size = int.from_bytes(data[10:14], "little")
    for at, byte in flips.items():
        data[14 + size + at] ^= byte
    text = json.dumps({**json.loads(data[14 : 14 + size]), **header}).encode()
    return bytes(data[:10] + len(text).to_bytes(4, "little") + text + data[14 + size :])


# The body: offset 8, linear 3 x (4 + 8), then neighbours 4 x (4 + 8): of 0, of 1, of 1, of 2.
BODY = 8 + 3 * 12
# Neighbours 1, 1 of 0 and 0, 0 of 1, with equal biases.
TWICE = {20: 3, 32: 7, BODY + 12: 1, BODY + 24: 2, BODY + 36: 1}
TWICE |= {BODY + 12 * k + 4 + at: byte for k in (2, 3) for at, byte in ((6, 0x08), (7, 0x80))}
BAD_BQM: list[tuple[bytes, str]] = [
    (other_bqm(1, variables=["a", "b", {}]), r"variables\[2\]: expected a string, a number .*, got a mapping"),
    (other_bqm(dtype="object"), r"dtype: expected float32 or float64, got 'object'"),
    (other_bqm(dtype="O"), r"dtype: expected float32 or float64, got 'O'"),
    (other_bqm(itype=["<i4"]), r"itype: expected int32 or int64"),
    (other_bqm(ntype="int8"), "ntype: expected int32 or int64 or uint32 or uint64, got 'int8'"),
    (other_bqm(vartype="INTEGER"), "vartype: expected SPIN or BINARY, got 'INTEGER'"),
    (other_bqm(shape=[3]), r"shape: expected numbers of variables and interactions, got \[3\]"),
    (other_bqm(shape=[-1, 2]), r"shape: expected .*, got \[-1, 2\]"),
    (other_bqm(shape=[10**30, 2]), r"shape: expected .*, got \[1000"),
    (other_bqm(shape=[3, 20]), r"expected 480 more bytes, got"),
    (other_bqm(1, shape=[3, 1]), "expected neighbours of every variable"),
    (other_bqm(shape=[0, 0]), "variables: expected 0 labels, got True"),
    (other_bqm(variables=False), "variables: expected 3 labels, got False"),
    (other_bqm(1, variables=["a", "b"]), r"variables: expected 3 labels, got \['a', 'b'\]"),
    (other_bqm(1, variables=["a", "b", "a"]), r"variables: expected 3 different labels"),
    (other_bqm(1, variables=["a", "b", json.loads("[" * 700 + "]" * 700)]), r"variables: nested too deeply"),
    (other_bqm(1, variables=["a", "b", 2**63]), r"variables\[2\]: expected integers below 2\^63"),
    (other_bqm(flips={8: 1}), "expected neighbours of every variable one after the other"),
    (other_bqm(flips={8 + 12: 8}), "expected neighbours of every variable one after the other"),
    (other_bqm(flips={BODY: 128}), "expected other variables 0 to 2 as neighbours"),
    (other_bqm(flips={BODY + 3: 128}), "expected other variables 0 to 2 as neighbours"),
    (other_bqm(flips={BODY: 1}), "expected other variables 0 to 2 as neighbours"),
    (other_bqm(flips={BODY: 3}), "expected every pair once among the neighbours of each"),
    (other_bqm(flips={BODY + 10: 1}), "expected every pair once among the neighbours of each"),
    (other_bqm(flips={BODY + 24: 2}), "expected every pair once among the neighbours of each"),
    (other_bqm(flips=TWICE), "expected every pair once among the neighbours of each"),
    (other_bqm(flips={19: 0x40}), "expected finite biases"),
    (other_bqm()[:100], "not valid JSON"),
    (other_bqm()[:-64], "variables: expected 3 labels, got True"),
    (b"DIMODBQM", "expected version 1 or 2 of dimod's file, got b''"),
    (b"DIMODBQM\3" + other_bqm()[9:], r"expected version 1 or 2 of dimod's file, got b'\\x03'"),
    (as_file(dimod.ConstrainedQuadraticModel()), "expected the file of a BinaryQuadraticModel, .*DIMODCQM"),
    (as_file(dimod.BinaryQuadraticModel("SPIN")), "the model has no variables"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), BAD_BQM, ids=[str(i) for i in range(len(BAD_BQM))])
def test_a_corrupt_file_of_dimod_is_one_sentence_with_its_name(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = write(tmp_path / "p.bqm", content)
    with pytest.raises(ProblemFileError, match=message) as caught:
        read_problem(path)
    assert str(caught.value).startswith(f"'{path}': ")
    assert "\n" not in str(caught.value)


class Trap:
    """What pickle would call when it reads."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('the content was run')",)


def test_no_file_runs_code(tmp_path: Path) -> None:
    """A pickle in place of all of it, of the numbers, or of an array of numpy."""
    trap, array = pickle.dumps(Trap()), io.BytesIO()
    np.save(array, np.array([Trap()], dtype=object), allow_pickle=True)
    head = other_bqm(dtype="object", variables=False, shape=[1, 0])
    for content in (trap, array.getvalue(), head[: 14 + int.from_bytes(head[10:14], "little")] + trap):
        with pytest.raises(ProblemFileError):
            read_problem(write(tmp_path / "p.bqm", content))


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
@pytest.mark.parametrize("suffix", [".json", ".bqm", ".coo", ".yaml", ".YML"])
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
    names: list[tuple[str, list[Any]]] = [
        *((suffix, ["a", 7, (1, 2)]) for suffix in (".json", ".bqm")),
        *((suffix, [("a", (1, (2.5, "b"))), (1, 2), None]) for suffix in (".json", ".bqm")),
        *((suffix, [5, 2, 9]) for suffix in (".json", ".bqm", ".coo", ".yaml")),
        *((suffix, [1, 0, 2]) for suffix in (".json", ".bqm", ".coo", ".yaml")),
        *((suffix, ["b", 7, "7"]) for suffix in (".json", ".bqm", ".yaml")),
        *(
            (suffix, ["\u2028 \x85\x7f", "\U0001f600 \U000e0001", "a: 'b', \"c\" #\\\n"])
            for suffix in (".json", ".bqm", ".yaml")
        ),
        *((suffix, list(np.arange(3)[::-1])) for suffix in (".json", ".bqm", ".yaml")),
    ]
    for suffix, labels in names:
        write_problem(tmp_path / f"p{suffix}", plain, labels)
        found = read_problem(tmp_path / f"p{suffix}")
        assert found.labels == labels
        assert torch.equal(found.ising.fields, plain.fields)
        assert plain.couplings is not None
        assert found.ising.couplings is not None
        assert torch.equal(found.ising.couplings, plain.couplings)
    write_problem(tmp_path / "p.yaml", make_problem((), 3, seed=1, lead="none"))
    assert read_problem(tmp_path / "p.yaml").ising.num_spins == 3


TWO, THREE = make_problem((), 2), make_problem((), 3)


@pytest.mark.parametrize(("name", "ising", "labels", "message"), [
    ("p.txt", THREE, None, r"path: expected a name that ends in \.json, .*, got 'p\.txt'"),
    ("p.coo", THREE, ["a", 1, 2], "labels: expected integers >= 0 for COO text, got 'a'"),
    ("p.coo", Ising([1.0], offset=2.5), None, r"offset: expected None for COO text, got 2\.5; use \.json"),
    ("p.yaml", THREE, [1, 2, (3, 4)], "labels: expected 3 different strings or integers"),
    ("p.yaml", TWO, ["\ud800", "a"], "labels: expected whole characters for YAML, got"),
    ("p.yaml", TWO, [2**63, "a"], r"labels: expected integers below 2\^63"),
    ("p.json", TWO, [("a", 2**63), "a"], r"labels\[0\]: expected strings, numbers below 2\^63, or tuples"),
    ("p.bqm", TWO, ["a", frozenset("ab")], r"labels\[1\]: expected strings, .* for \.bqm, got frozenset"),
    ("p.json", TWO, ["a", b"b"], r"labels\[1\]: expected strings"),
    ("p.json", TWO, ["a", math.nan], "labels: expected hashable labels, numbers among them finite"),
    ("p.json", TWO, ["a", (math.nan,)], r"labels\[1\]: expected strings"),
    ("p.json", make_problem((2,), 3), None, r"fields: expected one problem \[n\], got a batch \[2, 3\]"),
    ("p.json", make_problem((), 3, three_body=0.1), None, "three_body: expected None"),
])  # fmt: skip
def test_what_a_format_cannot_hold_is_not_written(
    tmp_path: Path, name: str, ising: Ising, labels: Any, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        write_problem(tmp_path / name, ising, labels)
    assert not list(tmp_path.iterdir())


def test_more_values_than_are_read_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("ising.problem_files", "documents.yaml_files"):
        monkeypatch.setattr(f"diabat.{module}.MAX_VALUES", 100)
    with pytest.raises(ArgumentError, match="expected at most 100 values, got more"):
        write_problem(tmp_path / "p.yaml", Ising(torch.zeros(101)))
    assert not list(tmp_path.iterdir())
