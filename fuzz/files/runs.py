"""Runs with a damaged file: loaded and resumed, or refused with the name of the file.

A checkpoint has no checksum: a change of its numbers may give any answer, but no crash.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from diabat.lab.training import load_model
from diabat.lab.training.folder import LATEST
from fuzz.files.mutations import damaged, other_tensors
from fuzz.properties import REFUSALS, demand, holds, refusal_flaw
from fuzz.tiny import tiny_train


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
