"""Quantum annealers and other dimod samplers."""

from __future__ import annotations

import math
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
import torch
from cli_runs import run
from dwave.system import EmbeddingComposite

from diabat import Ising, sampler
from diabat.samplers.dimod.budget import estimated_access_us
from diabat.samplers.dimod.tiled import TiledComposite
from diabat.samplers.pseudolikelihood import calibration_error, fit_betas
from diabat.testing.strict_qpu import TIMING, StrictMockQPU
from statements.table import F64, drawn, refused, says


def tiled(chip: StrictMockQPU, **options: Any) -> dict[str, Any]:
    """Options of the backend for fast anneals of small problems."""
    composite = TiledComposite(chip, **{"spins": 3, "fields": "ancilla"} | options)
    return {"sampler": composite, "parameters": {"fast_anneal": True, "annealing_time": 0.005}}


@says
def tiles_of_a_training_step() -> None:
    """hardware: A Zephyr chip of 4800 qubits has 353 tiles of six spins with an ancilla and takes the step in
    one submission: 2,691 qubits, at most 3 for one spin, .0406 s of access time for 100 reads.
    hardware: `dry_run` and `max_qpu_seconds` count one submission of the whole chip for each call"""
    chip = StrictMockQPU(topology_type="zephyr", topology_shape=[12, 4], beta=10.0)
    options = tiled(chip, spins=6)
    windows = drawn(64, 6)
    visible = torch.ones(6, 6).tril().bool().expand(64, 6, 6)
    step = Ising(windows.fields, windows.couplings, visible=visible)
    report = sampler("dimod", **options, beta=10.0).dry_run(step, 100)
    assert (chip.properties["num_qubits"], len(options["sampler"].tiles)) == (4800, 353)
    assert (report.submissions, report.qubits, report.longest_chain) == (1, 2691, 3)
    assert report.access_s == pytest.approx(0.0406, abs=5e-5)
    other = sampler("dimod", sampler=EmbeddingComposite(chip), beta=10.0).dry_run(drawn(2, n=3), 100)
    assert other.access_s == pytest.approx(2 * estimated_access_us(TIMING, 4800, {"num_reads": 100}) / 1e6)


@says
def calibration_errors() -> None:
    r"""hardware: Boltzmann reads of any temperature leave about $\sqrt{10 / (4RN)}$ with $R$ reads of $N$ spins, .009
    with 4,000 reads of 8 spins. Much more than that means that the reads follow no Boltzmann distribution of the
    problem."""
    problem = drawn(n=8, J=0.5, dtype=F64)

    def error(**reads_of: Any) -> float:
        samples = reads_of["backend"].sample(reads_of["problem"], 4000, seed=0)
        return calibration_error(problem, samples.spins, fit_betas(problem, samples.spins).scales)

    assert math.sqrt(10 / (4 * 4000 * 8)) == pytest.approx(0.009, abs=5e-4)
    for beta in (0.5, 1.0, 2.0):
        at_beta = Ising(beta * problem.fields, beta * problem.couplings)
        assert error(backend=sampler("exact"), problem=at_beta) < 0.015
    other = Ising(-problem.fields, 2 * problem.couplings.roll((1, 1), (0, 1)))  # another problem's reads
    assert error(backend=sampler("exact"), problem=other) > 0.05


@says
def ways_of_the_mock() -> None:
    """hardware: Without it only the reported law changes, to `diabatic`
    hardware: A flux bias that is too weak to hold a qubit is simulated without `schedule`, and refused with one.
    hardware: Pauses are `anneal_schedule` in `parameters`. Reverse anneals, with `initial_state`, go through
    another composite: `TiledComposite` refuses them."""
    shape: dict[str, Any] = {"topology_type": "zephyr", "topology_shape": [2, 4]}
    chip, problem = StrictMockQPU(**shape, beta=10.0, sweeps=10), drawn(2, n=3)
    one, other = (sampler("dimod", **tiled(chip), beta=10.0, law=law) for law in (None, "boltzmann"))
    assert replace(one.capabilities, law="boltzmann") == other.capabilities
    anneal = StrictMockQPU(**shape, schedule="Advantage2_system1")
    with patch("diabat.samplers.dimod.tiled._FLUX_BIAS", 1e-5):
        assert sampler("dimod", **tiled(chip), beta=10.0).sample(problem, 50).info["ancilla_flips"] > 0
        with refused("flux_biases: expected 0 or enough", Exception):
            sampler("dimod", **tiled(anneal), beta=(10.0, 11.0), retries=0).sample(problem, 5)
    pause = {"anneal_schedule": [[0, 0], [10, 0.5], [20, 0.5], [30, 1]]}
    back = {"anneal_schedule": [[0, 1], [10, 0.5], [20, 1]], "initial_state": {0: 1, 1: 1, 2: -1}}
    for parameters in (pause, back):
        options: dict[str, Any] = {"beta": 10.0, "parameters": parameters}
        found = sampler("dimod", sampler=EmbeddingComposite(chip), **options).sample(problem, 5)
        assert found.spins.shape == (5, 2, 3)
        plain = TiledComposite(chip, 3)
        if parameters is pause:
            assert sampler("dimod", sampler=plain, **options).sample(problem, 5).num_reads == 5
            continue
        with refused("parameters: TiledComposite has no parameter 'initial_state'", TypeError):
            sampler("dimod", sampler=plain, **options)


@says
def folders_that_are_written() -> None:
    """security: - **Write** into the folder `output`, and into `cache_dir` of the backend `dimod` if that is
    set."""
    chip = StrictMockQPU(topology_type="zephyr", topology_shape=[2, 4], beta=10.0, sweeps=2)
    tiny = ["task.window=4", "task.num_train=2", "task.num_validation=2", "training.max_epochs=1"]
    with TemporaryDirectory() as folder, chdir(folder):
        sampler("dimod", **tiled(chip), beta=10.0, cache_dir="paid").sample(drawn(2, n=3), 10, seed=1)
        assert run("train", "brackets-small", *tiny, "output=run").exit_code == 0
        assert {path.name for path in Path().iterdir()} == {"paid", "run"}
