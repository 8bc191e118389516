"""A stranger's run folder runs nothing of theirs unless --trust is given, whatever the command."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from cli_runs import run, run_json, train

STRANGER = """
from pathlib import Path
import dimod
Path({mark!r}).touch()
class Sampler(dimod.RandomSampler):
    pass
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trust") / "run"
    assert train(folder).exit_code == 0
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with exact marginals whose configuration somebody has changed afterwards."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "strangers.py").write_text(STRANGER.format(mark=str(tmp_path / "mark")))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.delitem(sys.modules, "strangers", raising=False)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    document = json.loads(path.read_text())
    document["sampler"] = {"backend": "dimod", "sampler": "strangers:Sampler", "beta": 1.0, "num_reads": 4}
    path.write_text(json.dumps(document))
    (tmp_path / "problem.yaml").write_text("fields: [0.5, -1.0]\n")
    return tmp_path / "run"


COMMANDS = {
    "train": ["train", "{run}", "--resume"],
    "fidelity": ["fidelity", "{run}", "fidelity.instances=1", "fidelity.queries=1", "--no-progress"],
    "fidelity of a checkpoint": [
        *["fidelity", "fidelity", "fidelity.checkpoint={run}", "fidelity.strengths=[0.1]"],
        *["fidelity.backends.dqa-5ns=null", "fidelity.instances=1", "fidelity.queries=1", "--no-progress"],
    ],
    "evaluate": ["evaluate", "{run}"],
    "explain": ["explain", "{run}", "a"],
    "sample": ["sample", "problem.yaml", "{run}"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_strangers_run_runs_nothing(command: str, folder: Path, tmp_path: Path) -> None:
    result = run(*(part.format(run=folder) for part in COMMANDS[command]))
    assert result.exit_code == 2
    assert (
        "sampler.backend: expected one of banded, dqa, exact, mean_field, refine, tempering" in result.stderr
    )
    assert "got 'dimod'" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("command", ["sample", "evaluate"])
def test_it_does_with_trust(command: str, folder: Path, tmp_path: Path) -> None:
    result = run(*(part.format(run=folder) for part in COMMANDS[command]), "--trust")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "mark").exists()


def test_looking_at_it_needs_no_trust(folder: Path, tmp_path: Path) -> None:
    assert run_json("config", "show", str(folder))["sampler"]["sampler"] == "strangers:Sampler"
    assert not (tmp_path / "mark").exists()
