r"""Maximum likelihood: the fields and couplings of a Boltzmann machine from a table of binary data.

    L(h, J) = (1/N) Σ_v log P(v) - ½ λ (Σ h² + Σ J²),    ∂L/∂J_jk = <s_j s_k>_data - <s_j s_k>_model - λ J_jk

over N states v of the first spins.  With hidden spins P(v) = Z(v held)/Z, and <>_data is a mean over them too, given v.
Source: Ackley, Hinton and Sejnowski, Cognitive Science 9 (1985) 147.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diabat.checks import check_count, check_flag, check_number, check_positive
from diabat.extras import extra
from diabat.ising import Ising
from diabat.ising.arguments import read_pairs, read_states, require_all_values
from diabat.ising.edges import Edges
from diabat.progress import new_bar, stderr_console
from diabat.samplers import Sampler, UnsupportedError
from diabat.samplers.registry import build_base
from diabat.samplers.seeds import draw_seed


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted Boltzmann machine of n spins, hidden ones included.

    Attributes:
        problem: h [n] and J as edges [E], float64.
        labels: Columns of a DataFrame, else numbers; hidden spins are "hidden 0", ...
        num_states: N.
        log_likelihood: Σ_v log P(v) in nats, without the penalty; None if the sampler reports no log Z.
        log_likelihood_error: Its standard error from an estimated log Z; 0 if log Z is exact.
        standard_errors: Of h and then J, [n + E], from the Fisher information; None with hidden spins, or unwanted.
        gradient: Largest |∂L/∂h| or |∂L/∂J| at the end, with the noise of the reads of a sampling backend.
        converged: Whether that is within the tolerance; None with a sampling backend.
        steps, seed: Evaluations of the gradient; the seed of reads and of hidden couplings.
    """

    problem: Ising
    labels: list[Hashable]
    num_states: int
    log_likelihood: float | None
    log_likelihood_error: float | None
    standard_errors: Tensor | None
    gradient: float
    converged: bool | None
    steps: int
    seed: int

    @property
    def parameters(self) -> Tensor:
        """Fields and couplings, [k]."""
        return torch.cat([t for t in self.problem.terms if t is not None])

    @property
    def aic(self) -> float | None:
        """2 k - 2 Σ log P(v), smaller is better; None without a log-likelihood."""
        return None if self.log_likelihood is None else 2 * len(self.parameters) - 2 * self.log_likelihood

    @property
    def bic(self) -> float | None:
        """Return k log N - 2 Σ log P(v), smaller is better; None without a log-likelihood."""
        likelihood, price = self.log_likelihood, math.log(self.num_states)
        return None if likelihood is None else price * len(self.parameters) - 2 * likelihood

    def to_pandas(self) -> Any:
        """A DataFrame of all fields, then couplings: ``spin``, ``other`` (None), ``value``, ``standard_error``."""
        edges, names, errors = self.problem.edges, self.labels, self.standard_errors
        pairs = [] if edges is None else [(names[j], names[k]) for j, k in edges.index.tolist()]
        rows = [(name, None) for name in names] + pairs
        table: Any = extra("pandas", "stats").DataFrame(rows, columns=["spin", "other"])
        table["value"] = self.parameters.numpy()
        return table.assign(standard_error=None if errors is None else errors.numpy())


def fit(
    data: Any, pairs: Any = None, *, sampler: str | Sampler = "exact", hidden: int = 0, l2: float = 0.0,
    steps: int | None = None, rate: float = 0.03, tolerance: float = 1e-6, errors: bool = True,
    seed: int | None = None, progress: bool = True,
) -> Fit:  # fmt: skip
    r"""Fit a Boltzmann machine to binary data by maximum likelihood.

    Args:
        data: States [N, n], as tensor, array, list or DataFrame: all ±1, all 0 and 1 (0 becomes -1), or booleans.
        pairs: Coupled pairs, [E, 2], by number or name of column (integers are names where columns have such); hidden
            spins are n, n + 1, ... or "hidden 0", ...  None: all pairs of variables or, with hidden spins, of a
            variable and a hidden spin (a restricted Boltzmann machine).
        sampler: Backend, by name or built.  With an exact gradient and log Z (``exact``, ``banded``) L-BFGS finds the
            maximum.  With another one that reports correlations, for example ``tempering`` with ``persistent=True``,
            Adam does, with a rate that decays to 0; the last quarter of its steps is averaged.
        hidden: Number of hidden spins.  The likelihood then has several maxima; the seed chooses the start.
        l2: λ >= 0 of the penalty ½ λ (Σ h² + Σ J²), taken from the mean log-likelihood of a row.
        steps: Most evaluations of the gradient by L-BFGS (500), or steps of Adam (400); None for these.
        rate: Rate of Adam at the start.
        tolerance: Largest entry of the gradient where L-BFGS has converged.
        errors: Compute standard errors: n + E second derivatives, which may take longer than the fit.
        seed: Of reads and of the start; None takes one from torch's global generator.
        progress: Show a bar in a terminal.

    Raises:
        ArgumentError: If an argument is out of range, or without ``l2`` a variable or a coupled pair of variables does
            not take all its values, so that the maximum is at infinity; a warning tells of standard errors above 3.
        UnsupportedError: If the sampler reports neither log Z nor correlations.
    """
    hidden = check_count("hidden", hidden, least=0)
    steps = check_count("steps", steps, optional=True)
    check_positive("rate", rate)
    check_positive("tolerance", tolerance)
    check_number("l2", l2, "[0, inf)")
    check_flag("errors", errors)
    check_flag("progress", progress)
    spins, names = read_states(data, hidden)
    index = read_pairs(pairs, names, spins.shape[1])
    if not l2:
        require_all_values(spins, index, names)
    model = _Model(spins, index, hidden, float(l2), build_base(sampler, None, samples=False), draw_seed(seed))
    most = steps or (500 if model.analytic else 400)
    with new_bar(shown=progress and stderr_console().is_terminal) as bar:
        task = bar.add_task("fit", total=most)
        search = model.by_lbfgs if model.analytic else model.by_adam
        theta, gradient, count = search(most, rate, tolerance, lambda: bar.advance(task))
        bar.update(task, completed=most)
        known = model.standard_errors(theta, bar) if errors and not hidden else None
        likelihood = model.log_likelihood(theta)
    if known is not None and (worst := float(known.max())) > 3:  # which no |J| of use exceeds
        fact = f"standard errors up to {worst:.2g}, as where the maximum is at infinity"
        warnings.warn(f"fit: the data leave {fact}; set l2 or fit fewer pairs.", stacklevel=2)
    largest = float(gradient.abs().max())
    facts: Any = (known, largest, largest <= tolerance if model.analytic else None, count, model.seed)
    return Fit(model.problem(theta), names, len(spins), *likelihood, *facts)


class _Model:
    """L as a function of the parameters θ = (h [n], J [E]), float64."""

    def __init__(
        self, spins: Tensor, pairs: Tensor, hidden: int, l2: float, sampler: Sampler, seed: int
    ) -> None:
        able = sampler.capabilities
        self.analytic = able.log_partition and "exact" in able.gradients
        if not self.analytic and not able.correlations:
            raise UnsupportedError("sampler", "one that reports log Z or correlations", f"'{sampler.name}'")
        self.pairs, self.hidden, self.l2, self.sampler, self.seed = pairs, hidden, l2, sampler, seed
        self.count, self.n = len(spins), spins.shape[1] + hidden
        states, times = torch.unique(spins, dim=0, return_counts=True)
        self.held = torch.cat((states, states.new_zeros(len(states), hidden)), 1)
        self.weights = times.double() / self.count
        self.means = None if hidden else self.weights @ self.features(self.held)

    def features(self, spins: Tensor) -> Tensor:
        """s_j and s_j s_k of states, [R, n + E]."""
        s, (j, k) = spins.double(), self.pairs.T
        return torch.cat((s, s[:, j] * s[:, k]), 1)

    def problem(self, theta: Tensor) -> Ising:
        return Ising(theta[: self.n], Edges(self.pairs, theta[self.n :]), check=False)

    def start(self) -> Tensor:
        """Zeros; hidden spins get small random couplings, since without any they would stay without."""
        random = torch.from_numpy(np.random.default_rng(self.seed).standard_normal(len(self.pairs)))
        couplings = 0.3 * random if self.hidden else 0 * random
        return torch.cat((random.new_zeros(self.n), couplings)).requires_grad_()

    def mean_log_likelihood(self, theta: Tensor) -> Tensor:
        """(1/N) Σ log P(v), differentiable."""
        problem = self.problem(theta)
        log_z: Any = self.sampler.moments(problem).log_partition
        if self.means is not None:
            return self.means @ theta - log_z
        held: Any = self.sampler.moments(problem.clamp(self.held)).log_partition
        return self.weights @ held - log_z

    def by_lbfgs(self, steps: int, rate: float, tolerance: float, advance: Callable[[], None]) -> Any:
        """The maximum of L, its gradient and the number of evaluations."""
        theta = self.start()
        limits: Any = {"max_eval": steps, "tolerance_grad": tolerance / 2, "tolerance_change": 0.0}
        optimizer = torch.optim.LBFGS([theta], max_iter=steps, line_search_fn="strong_wolfe", **limits)

        def loss() -> Tensor:
            advance()
            optimizer.zero_grad()
            value = self.l2 / 2 * theta.square().sum() - self.mean_log_likelihood(theta)
            value.backward()
            return value

        optimizer.step(loss)
        loss()
        return theta.detach(), theta.grad, optimizer.state[theta]["func_evals"] + 1

    def by_adam(self, steps: int, rate: float, tolerance: float, advance: Callable[[], None]) -> Any:
        """The mean of the last quarter of the steps, the gradient there and the number of evaluations."""
        theta, kept = self.start(), list[Tensor]()
        optimizer = torch.optim.Adam([theta], lr=rate)
        decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for step in range(steps):
            theta.grad = -self.sampled_gradient(theta.detach(), step)
            optimizer.step()
            decay.step()
            advance()
            if step >= 3 * steps // 4:
                kept.append(theta.detach().clone())
        mean = torch.stack(kept).mean(0)
        return mean, self.sampled_gradient(mean, steps), steps + 1

    def sampled_gradient(self, theta: Tensor, step: int) -> Tensor:
        """∂L/∂θ from the moments of the data and of the model."""
        problem, data = self.problem(theta), self.means
        one, two = np.random.SeedSequence([self.seed, step]).generate_state(2).tolist()
        if data is None:
            data = self.weights @ self.moments(problem.clamp(self.held), two)
        return data - self.moments(problem, one) - self.l2 * theta

    def moments(self, problem: Ising, seed: int) -> Tensor:
        """<s_j> and <s_j s_k>, [*batch, n + E]."""
        moments: Any = self.sampler.moments(problem, correlations=True, seed=seed)
        j, k = self.pairs.T
        return torch.cat((moments.magnetization, moments.correlation[..., j, k]), -1)

    def log_likelihood(self, theta: Tensor) -> tuple[float | None, float | None]:
        """Σ log P(v) and its error."""
        if self.analytic:
            return self.count * self.mean_log_likelihood(theta).item(), 0.0
        if self.means is None or not self.sampler.capabilities.log_partition:
            return None, None
        moments: Any = self.sampler.moments(self.problem(theta), log_partition=True, seed=self.seed)
        value, error = self.means @ theta - moments.log_partition, moments.info["log_partition_error"]
        return self.count * value.item(), self.count * float(error)

    def standard_errors(self, theta: Tensor, bar: Any) -> Tensor:
        """√ of the diagonal of (F + λ)⁻¹ F (F + λ)⁻¹ / N; F, the Fisher information, is the covariance of features."""
        if self.analytic:
            t = theta.clone().requires_grad_()
            (slope,) = torch.autograd.grad(-self.mean_log_likelihood(t), t, create_graph=True)
            rows = bar.track(slope, description="standard errors")
            F = torch.stack([torch.autograd.grad(row, t, retain_graph=True)[0] for row in rows])
        else:
            reads = max(2000, 20 * len(theta))
            F = self.features(self.sampler.sample(self.problem(theta), reads, seed=self.seed).spins).T.cov()
        inverse = torch.linalg.pinv(F + self.l2 * torch.eye(len(theta), dtype=F.dtype), hermitian=True)
        return (inverse @ F @ inverse / self.count).diagonal().clamp(min=0).sqrt()
