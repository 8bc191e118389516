"""What is wrong on a command line is told in one sentence with the fix, and nothing is written."""

import os
import shlex
from pathlib import Path

import numpy as np
import pytest
from cli_runs import run, train

from diabat.circuits import TrotterPlan, save_plan

PLAN = TrotterPlan(np.array([0.3, 0.6]), np.array([0.2, 0.5]), np.array([1.2, 0.7]), "two steps")
REFUSALS = (Path(__file__).parent / "refusals.txt").read_text().splitlines()[1:]
LONG = f"2 | fidelity fidelity.queries={10**400} | expected an integer of 64 bits, got 401 digits."
FILES = {
    "problem.yaml": "fields: [0.5, -1.0]\ncouplings: [[0, 1, 0.3]]\n",
    "large.yaml": f"fields: {[0.1] * 60}\ncouplings: [[0, 1, 0.5], [0, 59, 0.1]]\n",
    "triple.yaml": "fields: [0.5, 1, 0]\nthree_body: [[0, 1, 2, 0.1]]\n",
    "hidden.yaml": "fields: [0.5, 1, 0]\nvisible: [true, true, false]\n",
    "file": "",
    "old.qasm": "",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    for name, content in FILES.items():
        (folder / name).write_text(content)
    (folder / "folder").mkdir()
    save_plan(folder / "two.json", PLAN, {})
    before = Path.cwd()
    os.chdir(folder)
    options = ("model.num_layers=2", "model.num_heads=2", "task.window=8")
    assert train(Path("run"), *options, "model.mode=h+J").exit_code == 0
    assert train(Path("softmax"), "model.mode=softmax").exit_code == 0
    assert train(Path("hundred"), "task.vocab_size=100").exit_code == 0
    assert train(Path("damaged")).exit_code == 0
    weights = Path("damaged", "best.safetensors")
    weights.write_bytes(weights.read_bytes()[:-4])
    os.chdir(before)
    return folder


@pytest.mark.parametrize("line", [*REFUSALS, LONG], ids=lambda line: line.split(" | ")[1][:80])
def test_a_mistake_is_a_sentence_and_writes_nothing(
    line: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()}
    code, command, sentence = (part.strip() for part in line.split(" | "))
    quoted = command.replace("(", r"\(").replace(")", r"\)")
    result = run(*shlex.split(quoted))
    assert (result.exit_code, result.stdout) == (int(code), ""), result.stderr
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()} == before
    if sentence != "...":
        assert result.stderr.startswith("Error: ")
        assert sentence in result.stderr
        assert result.stderr.count("\n") == 1
