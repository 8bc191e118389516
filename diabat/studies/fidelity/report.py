"""The fidelity report: every backend on every ensemble, compared with exact enumeration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diabat.checks import check_count
from diabat.samplers.base import Sampler, UnsupportedError
from diabat.samplers.refine import RefineSampler
from diabat.samplers.seeds import draw_seed
from diabat.studies.comparison import PLACE, compare
from diabat.studies.ensembles import Ensemble
from diabat.studies.fidelity.score import Truth, ask, find_truth, score
from diabat.studies.report import Column, Report, Row

# Mean errors of reads of the exact law scatter by some percent about the floor.
_NOISE = 1.25


@dataclass(frozen=True)
class FidelityReport(Report):
    """Fidelity of several backends.

    Attributes:
        rows: One for each ensemble, strength and backend; keys as in ``DEFINITIONS``, ``refused`` with the backend's
            error message if it does not support the problems, and ``base`` with the name of the backend that
            ``refine`` starts from.
        num_reads: Reads per problem of sampling backends.
        seed: Seed of all draws.
    """

    num_reads: int = 0
    seed: int = 0

    title = "Fidelity against exact"
    labels = PLACE
    groups = ("ensemble", "strength")
    columns = (
        Column("marginal_max", "largest |P(s=+1) - exact| over visible spins of all problems"),
        Column("marginal_mean", "mean of the same",
               "|ΔP|\nmean/max", ".4f", "|ΔP|", beside="marginal_max", pattern="{}/{}"),
        Column("marginal_floor", "marginal_mean that independent exact reads would show at this number of reads"),
        Column("pair_max", "largest |<s_j s_k> - exact| over visible pairs"),
        Column("pair_mean", "mean of the same",
               "|Δ⟨ss⟩|\nmean/max", ".4f", beside="pair_max", pattern="{}/{}"),
        Column("tv", "total variation to the exact distribution over states, mean over problems",
               "TV\n(floor)", ".3f", "TV", beside="tv_floor", before="tv_base"),
        Column("tv_base", "tv of the reads that refine started from, with the same floor; null for other backends"),
        Column("kl", "KL(backend || exact) over states in nats, mean over problems", "KL\nnats", ".1e"),
        Column("tv_floor", "tv of independent exact reads at this number of reads (plug-in bias), simulated"),
        Column("kl_floor", "kl of the same"),
        Column("beta_h", "scale of the fields by maximum pseudo-likelihood; 1 is right", "β_h", ".3f", True),
        Column("beta_J", "scale of the couplings, fitted together with beta_h; 1 is right", "β_J", ".3f", True),
        Column("beta_K", "scale of the three-body terms"),
        Column("ess", "effective sample size (sum w)^2 / sum w^2; the number of reads where they are not weighted",
               "ESS", ".0f"),
        Column("attention_max", "largest error of the normalised attention weights"),
        Column("attention_mean", "mean of the same", "α error\nmean", ".4f"),
        Column("independent_error", "marginal_mean of the J = 0 answer"),
        Column("mean_field_error", "marginal_mean of naive mean field"),
        Column("capture", "coupling capture 1 - marginal_mean/independent_error: 1 all, 0 none of the couplings' "
               "effect", "capture\n(ceiling)", "z.2f", "capture", beside="capture_ceiling"),
        Column("capture_ceiling", "capture that independent exact reads would show at this number of reads"),
        Column("mean_field_capture", "coupling capture of naive mean field", "mean field\ncapture", "z.2f"),
        Column("us_per_query", "wall time of one call, without compilation, divided by its problems, in microseconds",
               "µs per\nquery", ".1f", "µs"),
    )  # fmt: skip

    def summary(self) -> str:
        """Summarise which backends have the smallest errors, and which are within read noise.

        Backends that answered every problem are ranked by their mean error.  A row of a sampled backend is within
        read noise if its mean error is at most 1.25 times that of the same number of exact reads.
        """
        answered: dict[str, list[Row]] = {}
        for row in self.rows:
            answered.setdefault(row["backend"], []).append(row)
        refusing = [name for name, own in answered.items() if any(row["refused"] is not None for row in own)]
        ranked = {name: own for name, own in answered.items() if name not in refusing}
        errors = {name: sum(row["marginal_mean"] for row in own) / len(own) for name, own in ranked.items()}
        sampled = {k: v for k, v in ranked.items() if all(row["marginal_floor"] is not None for row in v)}
        best = ", ".join(
            f"{name} ({errors[name]:.2g})" for name in sorted(errors, key=lambda name: errors[name])
        )
        noise = ", ".join(_within_noise(name, own) for name, own in sampled.items())
        parts = {
            "Mean |ΔP| over all problems, best first": best,
            "Within read noise": noise,
            "Not ranked, as they refused some problems": ", ".join(refusing),
        }
        return " ".join(f"{what}: {names}." for what, names in parts.items() if names)


DEFINITIONS = FidelityReport.definitions()


def fidelity_report(
    backends: dict[str, Sampler],
    ensembles: Iterable[Ensemble],
    *,
    num_reads: int = 1000,
    seed: int = 0,
    progress: bool = False,
    reference: Sampler | None = None,
) -> FidelityReport:
    """Compare backends with exact enumeration.

    Args:
        backends: Samplers by the name that the report shows.
        ensembles: Problems, e.g. ``[*sk(), *ferromagnet()]``.
        num_reads: Reads per problem for backends whose moments are sampled.
        seed: Seed of all draws.
        progress: Show a progress bar with the time left on standard error.
        reference: An exact backend; None means ``exact``.

    Returns:
        One row for each ensemble and backend, also if the backend refuses the ensemble (key ``refused``).

    Raises:
        FidelityError: If an ensemble has no exact answer.  Raised before any backend runs.
        ValueError: If there is nothing to compare, or ``num_reads`` or ``seed`` is out of range.
    """
    check_count("num_reads", num_reads)
    seed = draw_seed(seed)

    def solve(case: Ensemble) -> Truth:
        return find_truth(case, reference)

    def rows(backend: Sampler, case: Ensemble, truth: Truth) -> list[Row]:
        base = {"base": backend.base.name if isinstance(backend, RefineSampler) else None}
        try:
            answer = ask(backend, case.ising, num_reads=num_reads, seed=seed)
        except UnsupportedError as refusal:
            return [{**base, "refused": str(refusal)}]
        return [base | score(case.ising, truth, answer, seed=seed)]

    return FidelityReport(compare(backends, ensembles, solve, rows, progress=progress), num_reads, seed)


def _within_noise(name: str, rows: Sequence[Row]) -> str:
    count = sum(row["marginal_mean"] <= _NOISE * row["marginal_floor"] for row in rows)
    return f"{name} in {'every row' if count == len(rows) else f'{count} of {len(rows)} rows'}"
