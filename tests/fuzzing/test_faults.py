"""The sweep of disk faults, a few of them; and that it notices a run that is not saved atomically."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Files that are written under their own name: what a kill leaves is half of one.
CARELESS = """
import sys
import diabat.checkpoints, diabat.heads.games.store, diabat.heads.calibration.file
def careless(path, content):
    with open(path, "wb") as file:
        file.write(content)
for module in (diabat.checkpoints, diabat.heads.games.store, diabat.heads.calibration.file):
    module.replace_file = careless
from fuzz.faults.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def faults(*arguments: str, script: str | None = None) -> subprocess.CompletedProcess[str]:
    how = ["-m", "fuzz.faults"] if script is None else ["-c", script]
    return subprocess.run(
        [sys.executable, *how, *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_short_sweep_loses_nothing() -> None:
    done = faults("--every", "17", "--kills", "2")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    for part in ("training", "heads", "models"):
        assert re.search(rf"{part}, new: \d+ operations: \d+ ", done.stdout)
    assert done.stdout.endswith("Nothing was lost.\n")


@pytest.mark.slow
def test_the_sweep_notices_what_is_not_written_atomically() -> None:
    parts = [word for part in ("training", "heads", "models") for word in ("--only", part)]
    done = faults(*parts, "--how", "killed", "--every", "2", "--kills", "0", script=CARELESS)
    assert done.returncode == 1, done.stdout
    assert re.search("training, .*(does not load|does not resume)", done.stdout)
    assert re.search("heads, .*values.safetensors does not load", done.stdout)
    assert re.search("models, .*gac.json does not load", done.stdout)


def test_the_operation_that_fails_is_the_one_asked_for(tmp_path: Path) -> None:
    program = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from fuzz.faults.disk import Disk
disk = Disk(Path({str(tmp_path)!r}), int(sys.argv[1]), sys.argv[2])
disk.watch()
path = Path({str(tmp_path / "a")!r})
os.listdir("/")
with open(path, "wb") as file:
    file.write(b"0123456789")
os.rename(path, path.with_name("b"))
path.with_name("b").unlink()
print(disk.operations)
"""

    def run(moment: int, how: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, str(moment), how], capture_output=True, text=True, check=False
        )

    assert run(0, "killed").stdout == "['open', 'write', 'close', 'rename', 'unlink']\n"
    assert run(2, "killed").returncode == -9
    assert (tmp_path / "a").read_bytes() == b"01234"
    assert "No space left" in run(2, "full").stderr
    assert "OSError: [Errno 5]" in run(4, "broken").stderr
