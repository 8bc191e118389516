"""Checks of form, without statistics: shapes, dtypes, numbers of reads and invisible spins."""

from __future__ import annotations

import torch

from diabat.ising import Ising
from diabat.testing.core import Trial, check, demand, draws_samples
from diabat.testing.form import check_form, check_samples_form, leads
from diabat.testing.problems import make_problem, with_visible

BATCHES: tuple[tuple[int, ...], ...] = ((), (1,), (5,), (2, 3))
SIZE = 4


@check()
def shapes_and_dtypes(trial: Trial) -> None:
    """Spins are int8 ±1, moments have the shape and dtype of the fields, for every batch and lead of J."""
    for dtype in (torch.float32, torch.float64):
        for batch in BATCHES:
            for lead in leads(trial):
                ising = make_problem(batch, SIZE, lead=lead, seed=trial.seed, dtype=dtype)
                check_form(trial, ising, f"for batch {list(batch)}, J {lead}, {dtype}")


@check()
def single_spin(trial: Trial) -> None:
    """A problem of one spin is a problem."""
    check_form(trial, make_problem((3,), 1, lead="none", seed=trial.seed), "for n = 1 without J")
    check_form(trial, Ising(torch.tensor([[0.3], [-0.2]]), torch.zeros(1, 1)), "for n = 1 with J = [[0]]")


@check()
def nothing_visible(trial: Trial) -> None:
    """A query that sees nothing has probability 0, spin -1 and log Z = 0."""
    mask = torch.tensor([[False] * SIZE, [True] * SIZE, [False, True, False, False]])
    for rows in ([0, 1, 2], [0], [2]):
        ising = with_visible(make_problem((len(rows),), SIZE, seed=trial.seed), mask[rows])
        check_form(trial, ising, f"with visible {mask[rows].sum(1).tolist()} of {SIZE} spins")
        log_z = trial.sampler.moments(ising, seed=trial.seed).log_partition
        if log_z is not None and rows[0] == 0:
            got = float(log_z[0])
            demand(
                abs(got) < 1e-5, f"log_partition: expected 0 for a query that sees nothing, got {got:.3g}."
            )


@check(draws_samples)
def number_of_reads(trial: Trial) -> None:
    """num_reads is kept exactly."""
    ising = make_problem((2,), SIZE, seed=trial.seed)
    for num_reads in (1, 2, 7, 33):
        check_samples_form(trial.draw(ising, num_reads), ising, num_reads, f"for num_reads={num_reads}")


@check()
def invisible_spins(trial: Trial) -> None:
    """The field and the couplings of an invisible spin change nothing."""
    visible = torch.tensor([[True, False, True, True, False]]).expand(3, 5).clone()
    visible[2] = torch.tensor([False, True, True, False, True])
    plain = with_visible(make_problem((3,), 5, seed=trial.seed), visible[:1] if trial.seed % 2 else visible)
    loud = _shouting_invisible(plain)
    check_form(trial, loud, "with invisible spins")
    if trial.able.samples:
        same = torch.equal(trial.draw(plain, 64).spins, trial.draw(loud, 64).spins)
        demand(
            same, "visible: expected the draw unchanged by parameters of invisible spins, got another one."
        )
    quiet_p, loud_p = (trial.sampler.moments(p, seed=trial.seed).probability for p in (plain, loud))
    gap = float((quiet_p - loud_p).abs().max())
    demand(
        gap < 1e-6,
        f"visible: expected moments unchanged by parameters of invisible spins, got a change of {gap:.3g}.",
    )


def _shouting_invisible(ising: Ising) -> Ising:
    """Give invisible spins a large field, and those that no problem of the batch sees large couplings."""
    assert ising.couplings is not None
    hidden = ~ising.visible_mask
    everywhere = hidden.reshape(-1, ising.num_spins).all(0)
    J = ising.couplings.clone()
    J[..., everywhere, :] = 9.0
    J[..., :, everywhere] = 9.0
    J.diagonal(dim1=-2, dim2=-1).zero_()
    return Ising(torch.where(hidden, 7.0, ising.fields), J, ising.visible)
