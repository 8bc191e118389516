"""Checks of form, without statistics: shapes, dtypes, numbers of reads and invisible spins."""

from __future__ import annotations

import torch
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.answers import Moments, Samples
from diabat.testing.core import ConformanceError, Trial, check, demand, demand_below, demand_equal
from diabat.testing.problems import LEADS, make_problem, with_visible

BATCHES: tuple[tuple[int, ...], ...] = ((), (1,), (5,), (2, 3))
SIZE = 4
FEW_READS = 24


@check()
def shapes_and_dtypes(trial: Trial) -> None:
    """Spins are int8 ±1, moments have the shape and dtype of the fields, for every batch and lead of J."""
    for dtype in (torch.float32, torch.float64):
        for batch in BATCHES:
            for lead in LEADS:
                ising = make_problem(batch, SIZE, lead=lead, seed=trial.seed, dtype=dtype)
                check_form(trial, ising, f"for batch {list(batch)}, J {lead}, {dtype}")


@check()
def single_spin(trial: Trial) -> None:
    """A problem of one spin is a problem."""
    check_form(trial, make_problem((3,), 1, lead="none", seed=trial.seed), "for n = 1 without J")
    check_form(trial, Ising(torch.tensor([[0.3], [-0.2]]), torch.zeros(1, 1)), "for n = 1 with J = [[0]]")


@check()
def nothing_visible(trial: Trial) -> None:
    """A problem without visible spins has probability 0, spin -1 and log Z = 0."""
    mask = torch.tensor([[False] * SIZE, [True] * SIZE, [False, True, False, False]])
    for rows in ([0, 1, 2], [0], [2]):
        ising = with_visible(make_problem((len(rows),), SIZE, seed=trial.seed), mask[rows])
        check_form(trial, ising, f"with visible {mask[rows].sum(1).tolist()} of {SIZE} spins")
        log_z = trial.moments(ising).log_partition
        if log_z is not None and rows[0] == 0:
            demand_below(log_z[0], 1e-5, "log_partition: expected 0 for a problem without visible spins")


@check(samples=True)
def number_of_reads(trial: Trial) -> None:
    """num_reads is kept exactly."""
    ising = make_problem((2,), SIZE, seed=trial.seed)
    for num_reads in (1, 2, 7, 33):
        check_samples_form(trial.draw(ising, num_reads), ising, num_reads, f"for num_reads={num_reads}")


@check()
def invisible_spins(trial: Trial) -> None:
    """The field and the couplings of an invisible spin have no effect."""
    visible = torch.tensor([[True, False, True, True, False]]).expand(3, 5).clone()
    visible[2] = torch.tensor([False, True, True, False, True])
    weak = with_visible(make_problem((3,), 5, seed=trial.seed), visible[:1] if trial.seed % 2 else visible)
    loud = _with_strong_invisible(weak)
    check_form(trial, loud, "with invisible spins")
    what = "visible: expected the same {} for any parameters of invisible spins"
    if trial.able.samples:
        same = torch.equal(trial.draw(weak, 64).spins, trial.draw(loud, 64).spins)
        demand(same, what.format("draw") + ", got another one.")
    weak_p, loud_p = (trial.sampler.moments(p, seed=trial.seed).probability for p in (weak, loud))
    demand_below(weak_p - loud_p, 1e-6, what.format("moments"))


def _with_strong_invisible(ising: Ising) -> Ising:
    """Give invisible spins a large field, and spins that are invisible in every problem large couplings."""
    assert ising.couplings is not None
    hidden = ~ising.visible_mask
    everywhere = hidden.reshape(-1, ising.num_spins).all(0)
    J = ising.couplings.masked_fill(everywhere | everywhere[:, None], 9.0)
    J.diagonal(dim1=-2, dim2=-1).zero_()
    return Ising(torch.where(hidden, 7.0, ising.fields), J, ising.visible)


def check_samples_form(samples: Samples, ising: Ising, num_reads: int, where: str) -> None:
    """Demand int8 ±1 [num_reads, *batch, n], -1 where invisible."""
    spins, hidden = samples.spins, ~ising.visible_mask.to(samples.spins.device)
    demand_equal(list(spins.shape), [num_reads, *ising.fields.shape], f"spins {where}: shape")
    demand_equal(spins.dtype, torch.int8, f"spins {where}: dtype")
    demand_equal(set(spins.unique().tolist()) - {-1, 1}, set(), f"spins {where}: values other than -1 and +1")
    demand(bool((spins[:, hidden] == -1).all()), f"spins {where}: expected -1 on invisible spins, got +1.")
    demand_equal({"backend", "seed"} - set(samples.info), set(), f"samples.info {where}: missing keys")


def check_moments_form(moments: Moments, ising: Ising, trial: Trial, where: str) -> None:
    """Demand probabilities in [0, 1] of the fields' shape and dtype, 0 where invisible."""
    batch, n, able = list(ising.batch_shape), ising.num_spins, trial.able
    expected: list[tuple[str, bool, Tensor | None, list[int]]] = [
        ("probability", True, moments.probability, [*batch, n]),
        ("correlation", able.correlations, moments.correlation, [*batch, n, n]),
        ("log_partition", able.log_partition, moments.log_partition, batch),
        ("standard_error", moments.num_reads is not None, moments.standard_error, [*batch, n]),
    ]
    demand_equal(list(moments.visible.shape), [*batch, n], f"visible {where}: shape")
    for name, promised, value, shape in expected:
        if promised:
            if value is None:
                raise ConformanceError(f"{name} {where}: expected a tensor, as promised, got None.")
            demand_equal(list(value.shape), shape, f"{name} {where}: shape")
            demand_equal(value.dtype, ising.fields.dtype, f"{name} {where}: dtype")
            finite = bool(value.isfinite().all())
            demand(finite, f"{name} {where}: expected finite values, got NaN or infinity.")
    p, hidden = moments.probability, ~ising.visible_mask
    demand(bool(((p >= 0) & (p <= 1)).all()), f"probability {where}: expected values in [0, 1].")
    demand(bool((p[hidden] == 0).all()), f"probability {where}: expected 0 on invisible spins.")
    if moments.correlation is not None:
        diagonal = moments.correlation.diagonal(dim1=-2, dim2=-1)
        what = f"correlation {where}: expected 1 on the diagonal of visible spins and 0 on invisible ones"
        demand_below(diagonal - (~hidden).to(diagonal), 1e-5, what)


def check_form(trial: Trial, ising: Ising, where: str) -> None:
    """Call ``sample`` and ``moments`` once and check the form of both results."""
    if trial.able.samples:
        check_samples_form(trial.draw(ising, FEW_READS), ising, FEW_READS, where)
    check_moments_form(trial.moments(ising), ising, trial, where)
