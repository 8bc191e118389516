"""Saved samples and moments with other bytes, tensors and facts: read and used, or a sentence with the name."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

import diabat
from diabat.testing.problems import make_problem
from fuzz.files.mutations import damaged, other_tensors
from fuzz.properties import demand, holds, naming


@cache
def _answers() -> tuple[bytes, bytes]:
    """Samples and moments of a batch."""
    problem, sampler = make_problem((2,), 3), diabat.sampler("exact")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answer"
        sampler.sample(problem, 4, seed=1).save(path)
        samples = path.read_bytes()
        sampler.moments(problem, correlations=True).save(path)
        return samples, path.read_bytes()


@holds
def saved_answer(draw: st.DrawFn, folder: Path) -> None:
    """What is loaded has spins of ±1 or probabilities, in the shape of `visible`."""
    kind, path = draw(st.integers(0, 1)), folder / "some.answer"
    content = _answers()[kind]
    path.write_bytes(draw(damaged([content]) | other_tensors(content)))
    with naming(path.name):
        found = (diabat.Samples, diabat.Moments)[kind].load(path)
    demand(isinstance(getattr(found, "ising", None), diabat.Ising | None), "ising: expected none")
    if isinstance(found, diabat.Samples):
        demand(bool((found.spins.abs() == 1).all()), "spins: expected -1 and +1")
        demand(found.spins.shape[1:] == found.visible.shape, "spins: expected the shape of visible")
    else:
        demand(bool((found.magnetization.abs() <= 1).all()), "magnetization: expected numbers from -1 to 1")
        for name in ("correlation", "log_partition"):
            numbers = getattr(found, name)
            demand(numbers is None or bool(numbers.isfinite().all()), f"{name}: expected finite numbers")
        demand(found.probability.shape == found.visible.shape, "probability: expected the shape of visible")
