"""Files that people write: problems of all formats, plans, schedules, configurations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import dimod
import torch
from hypothesis import strategies as st

import diabat
from diabat.checks import ArgumentError
from diabat.circuits import available_plans, builtin_plan
from diabat.circuits.plan_file import save_plan
from diabat.documents.yaml_files import parse_yaml
from diabat.ising import to_bqm
from diabat.ising.problem_files import read_problem, write_problem
from diabat.lab.config.loading import load_config, make_config, shipped_configs, to_plain, to_yaml
from diabat.testing.problems import make_problem
from fuzz.calls.laws import in_range
from fuzz.files.answers import saved_problem
from fuzz.files.mutations import damaged, other_tensors, saved
from fuzz.properties import demand, holds, naming

_MOST_SPINS = 14
YAML = (
    "fields: [0.5, -1.0, 0.0]\ncouplings: [[0, 1, 0.8], [1, 2, -0.3]]\nvisible: [true, true, false]\nbeta: 1.0\n",
    "fields: [1e-3, 2, 3]\ncouplings: [[0, 1, 2], [1, 0, 3], [2, 3, 0]]\n",
    "# a comment\nfields:\n  - 0.1\n  - 0.2\n  - 0.3\n  - 0.4\nthree_body:\n  - [0, 1, 2, 0.1]\n  - [1, 2, 3, -0.5]\n",
    '{fields: [0.5], beta: 2.0}\n',
    "labels: [b, 7, 'a c']\nfields: [0.1, 0.2, 0.3]\ncouplings: [[b, 7, 1], ['a c', b, 2]]\n",
)  # fmt: skip
COO = (
    "# vartype=SPIN\n0 0 -1.000000\n0 1 0.500000\n1 1 0.250000\n1 2 -0.750000\n2 2 0.500000\n",
    "# vartype=BINARY\n0 0 1e-3\n0 7 +2.5E-1\n3 7 -1\n",
    "# by me\n# vartype=SPIN, offset=42\n0 0 1\n0 1 1\n",
)
LISTS = (
    "c offset=0.25\np qubo 0 4 2 2\n0 0 0.5\n3 3 -1.5\n0 3 2.0\n1 3 1e-1\n",
    "4 3\n1 2 1\n2 3 -1\n1 4 2.5\n",
)


DICTIONARIES = (
    b'{"qubo": {"a,a": 1.0, "a,b": -2.0, "(b, 0)": 0.5}, "offset": 0.25}',
    b'{"h": {"a": 1.0, "b": -0.5}, "J": [["a", "b", 2.0], ["b", 3, -1.0]], "beta": 2.0}',
    b'{"linear": [0.5, 1.0], "quadratic": {"0 1": -1.5}, "vartype": "BINARY"}',
)


@cache
def _models() -> Sequence[dimod.BinaryQuadraticModel]:
    """Models of dimod, with offsets."""
    chain = {j: 0.1 * j for j in range(6)}
    return [
        dimod.BinaryQuadraticModel({0: -1.0, 1: 0.25, 2: 0.5}, {(0, 1): 0.5, (1, 2): -0.75}, 0.25, "SPIN"),
        dimod.BinaryQuadraticModel({"a": 1.0, ("x", 1): 2.0}, {("a", ("x", 1)): -1.0}, 1.5, "BINARY"),
        dimod.BinaryQuadraticModel(chain, {(j, j + 1): 1.0 for j in range(5)}, 0, "SPIN"),
    ]


@cache
def _texts() -> Sequence[bytes]:
    """Problems as JSON."""
    return [*(json.dumps(model.to_serializable()).encode() for model in _models()), *DICTIONARIES]


@cache
def _binaries() -> Sequence[bytes]:
    """Files of dimod."""
    files = []
    for model in _models():
        for version in (1, 2):
            with model.to_file(version=version) as file:
                files.append(file.read())
    return files


@holds
def problem_file(draw: st.DrawFn, folder: Path) -> None:
    """A problem of any format: moments in range, and the energies of dimod, offset included; or its name."""
    lines, problem = [text.encode() for text in (*YAML, *COO, *LISTS)], saved_problem()
    texts = damaged(lines) | damaged(_texts(), is_json=True)
    content = draw(texts | damaged(_binaries()) | damaged([problem]) | other_tensors(problem))
    path = folder / "some.problem"
    path.write_bytes(content)
    with naming(path.name):
        problem_of_file = read_problem(path)
    ising = problem_of_file.ising
    demand(len(problem_of_file.labels) == ising.num_spins, "labels: expected one for each spin")
    if ising.num_spins > _MOST_SPINS:
        return
    in_range(diabat.sampler("exact").moments(ising, correlations=True), ising)
    if ising.three_body is None and ising.clamped is None and bool(ising.visible_mask.all()):
        spins = torch.ones(ising.num_spins, dtype=torch.int8)
        want, energy = to_bqm(ising).energy(dict(enumerate(spins.tolist()))), float(ising.energy(spins))
        demand(abs(energy - want) <= 1e-9 * (1 + abs(want)), f"energy: expected {want}, got {energy}")


@holds
def written_problem(draw: st.DrawFn, folder: Path) -> None:
    """A problem with names is read back as it was written, in the order of its spins; or its labels are refused."""
    plain = st.text(max_size=5) | st.integers(-(2**65), 2**65) | st.integers(0, 9) | st.floats() | st.none()
    names = st.recursive(plain, lambda part: st.tuples(part, part), max_leaves=4) | st.binary(max_size=2)
    labels: Any = draw(st.lists(names, min_size=1, max_size=5))
    suffix = draw(st.sampled_from([".json", ".bqm", ".coo", ".yaml"]))
    ising, path = make_problem((), len(labels), seed=draw(st.integers(0, 9))), folder / f"p{suffix}"
    try:
        write_problem(path, ising, labels)
    except ArgumentError as error:
        demand(error.argument is not None and error.argument.startswith("labels"), f"labels: got {error}")
        return
    read = read_problem(path)
    demand(read.labels == labels, f"labels: expected {labels}, got {read.labels}")
    demand(read.ising.fields.equal(ising.fields), "fields: expected the same numbers")


@cache
def _plans() -> Sequence[bytes]:
    plans = [builtin_plan(name) for name in available_plans()[:2]]
    return [saved(partial(save_plan, plan=plan, metadata=metadata)) for plan, metadata in plans]


def _schedules() -> Sequence[bytes]:
    """Schedules as tables: plain, and with solver and protocol."""
    rows = [f"{k / 12:.6f},{6 * (1 - k / 12) ** 3:.6f},{8 * (k / 12) ** 2:.6f}\n" for k in range(13)]
    named = [f"mine,{protocol},{row}" for protocol in ("fast", "standard") for row in rows]
    head = "s,A_GHz,B_GHz\n"
    return (head + "".join(rows)).encode(), ("# made up\nsolver,protocol," + head + "".join(named)).encode()


@holds
def schedule(draw: st.DrawFn, folder: Path) -> None:
    """A plan or a table of a schedule: an anneal with moments in range, or a sentence."""
    path, content, options = folder / "some-plan.json", damaged(_plans(), is_json=True), {}
    if draw(st.booleans()):
        path, content = folder / "some-schedule.csv", damaged(_schedules())
        options = {"annealing_time_ns": 1.0, "protocol": None}
    path.write_bytes(draw(content))
    # What is read is refused with the name of the file; what the engine cannot run, with that of the plan.
    with naming(path.stem):
        sampler = diabat.sampler("dqa", schedule=str(path), **options)
    ising = make_problem((2,), 3)
    in_range(sampler.moments(ising, correlations=True), ising)


@cache
def _configurations() -> Sequence[bytes]:
    """Shipped configurations as they are, resolved, and as JSON."""
    texts = [path.read_bytes() for path in shipped_configs().values()]
    for name in ("recall-dqa", "fidelity", "text"):
        config = load_config(name)
        texts += [to_yaml(config).encode(), json.dumps(to_plain(config), indent=1).encode()]
    return texts


@holds
def configuration(draw: st.DrawFn, folder: Path) -> None:
    """A configuration: equal to itself after a round trip, or a sentence."""
    path = folder / "some.yaml"
    path.write_bytes(draw(damaged(_configurations())))
    config = load_config(path)
    again = make_config(parse_yaml(to_yaml(config), "again"))
    demand(again == config, "round trip: expected an equal configuration")
