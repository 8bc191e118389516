"""Saved answers, problems, counts of a budget and runs, with other content: used, or a sentence with the name.

A checkpoint has no checksum: a change of its numbers may give any answer, but no crash.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache, partial
from pathlib import Path

from hypothesis import strategies as st

import diabat
from diabat.lab.training import load_model
from diabat.lab.training.folder import LATEST
from diabat.samplers.dimod.budget import Budget
from diabat.testing.problems import make_problem
from fuzz.calls.laws import finite
from fuzz.files.mutations import damaged, other_tensors, saved
from fuzz.properties import REFUSALS, demand, holds, naming, refusal_flaw
from fuzz.tiny import tiny_train


@cache
def _answers() -> tuple[bytes, bytes]:
    """Samples and moments of a batch."""
    problem, sampler = make_problem((2,), 3), diabat.sampler("exact")
    samples, moments = sampler.sample(problem, 4, seed=1), sampler.moments(problem, correlations=True)
    return saved(samples.save), saved(moments.save)


@cache
def saved_problem() -> bytes:
    """A problem with all that a file can hold."""
    ising = make_problem((), 4, seed=1, three_body=0.5).clamp([1, 0, 0, 0])
    return saved(partial(ising.save, labels=["a", "b", 2, 3]))


@holds
def problem_of_ones_own(draw: st.DrawFn, folder: Path) -> None:
    """What is loaded has finite energies and a finite log Z, and is saved again."""
    path, content = folder / "some.problem", saved_problem()
    path.write_bytes(draw(damaged([content]) | other_tensors(content)))
    with naming(path.name):
        ising = diabat.Ising.load(path)
    ising.save(path)
    demand(diabat.Ising.load(path).fields.equal(ising.fields), "round trip: expected the same fields")
    if ising.num_spins <= 10 and bool((ising.fields.abs() < 1e3).all()):
        log_z = diabat.sampler("exact").moments(ising).log_partition
        demand(log_z is not None and bool(log_z.isfinite().all()), "log Z: expected finite numbers")


@holds
def saved_answer(draw: st.DrawFn, folder: Path) -> None:
    """What is loaded has spins of ±1 or probabilities, in the shape of `visible`."""
    kind, path = draw(st.integers(0, 1)), folder / "some.answer"
    content = _answers()[kind]
    path.write_bytes(draw(damaged([content]) | other_tensors(content)))
    with naming(path.name):
        answer = (diabat.Samples, diabat.Moments)[kind].load(path)
    demand(isinstance(getattr(answer, "ising", None), diabat.Ising | None), "ising: expected none")
    if isinstance(answer, diabat.Samples):
        demand(bool((answer.spins.abs() == 1).all()), "spins: expected -1 and +1")
        demand(answer.spins.shape[1:] == answer.visible.shape, "spins: expected the shape of visible")
    else:
        demand(bool((answer.magnetization.abs() <= 1).all()), "magnetization: expected numbers from -1 to 1")
        finite(answer.correlation, "correlation")
        finite(answer.log_partition, "log_partition")
        demand(answer.probability.shape == answer.visible.shape, "probability: expected the shape of visible")


_ENTRIES = st.sampled_from((0, -1, 3, 1 << 62, 1.5, 1e308, float("inf"), None, "x", [1], True))


@cache
def _counts() -> bytes:
    return saved(lambda path: Budget(path=path).add(3, 0.5))


@holds
def budget(draw: st.DrawFn, folder: Path) -> None:
    """An entry adds what it says to a total that is there, whatever else the file holds; or it is refused."""
    path = folder / "spent.json"
    if draw(st.booleans()):
        path.write_bytes(draw(damaged([_counts()])))
    else:
        names = st.sampled_from(("reads", "seconds", "more"))
        path.write_text(json.dumps(draw(st.dictionaries(names, _ENTRIES))))
    with naming(path.name):
        before = Budget(path=path).total()
        after = Budget(path=path).add(2, 0.25)
    demand(before.reads >= 0 and before.seconds >= 0, f"total: expected no negative numbers, got {before}")
    demand(after == (before.reads + 2, before.seconds + 0.25) == Budget(path=path).total(), f"got {after}")


@cache
def _original() -> Path:
    """The folder of a run of three epochs."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-run-")) / "run"
    tiny_train(folder)
    return folder


@holds
def checkpoint(draw: st.DrawFn, folder: Path) -> None:
    """A checkpoint: the run goes on for an epoch, or the checkpoint is refused, always if it is too short or long."""
    before = (_original() / LATEST).read_bytes()
    content = draw(other_tensors(before))
    _use(folder / "run", LATEST, content, must_refuse=content in (before[:-1], before + b"x"))


@holds
def record(draw: st.DrawFn, folder: Path) -> None:
    """The metrics or the configuration of a run: it goes on for an epoch, or a sentence."""
    name = draw(st.sampled_from(["metrics.jsonl", "config.json"]))
    _use(folder / "run", name, draw(damaged([(_original() / name).read_bytes()])))


def _use(run: Path, name: str, content: bytes, *, must_refuse: bool = False) -> None:
    shutil.copytree(_original(), run)
    (run / name).write_bytes(content)
    # What trains on is refused by its step, options and data by their names.
    said = (f" in {run}.", "metrics.jsonl", " as in ", "step ", "expected the training data of")
    names = (str(run / name), *said)
    refused = None
    for use in (lambda: load_model(run, "latest"), lambda: tiny_train(run, resume=True, max_epochs=4)):
        try:
            use()
        except REFUSALS as error:
            if refusal_flaw(error):
                raise
            demand(any(word in str(error) for word in names), f"refusal without a name: {error}")
            refused = error
    if refused is not None:
        raise refused
    demand(not must_refuse, f"accepted: {name}, which is too short or too long")
