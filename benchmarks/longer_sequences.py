"""Finished runs of windows-shakespeare: loss, loss on sequences four times as long, and speed of the training.

python -m benchmarks.longer_sequences FOLDER [--json]      # FOLDER as --output of diabat reproduce windows-shakespeare
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import report
from diabat.config import load_config
from diabat.runs import evaluate_run, load_run
from diabat.training import is_finished
from diabat.training.report import METRICS

FACTOR = 4


def row(folder: Path) -> dict[str, Any] | None:
    """Losses in nats per character; characters of training per second of processor time, validation included.

    None for a run that is not finished.
    """
    config = load_config(folder / "config.json")
    context, options = config.task.window, config.training
    if not is_finished(folder, options):
        return None
    run = load_run(folder)
    longer = load_run(folder, [f"task.window={FACTOR * context}"])
    last = json.loads((folder / METRICS).read_text(encoding="utf-8").splitlines()[-1])
    loss, long_loss = evaluate_run(run).loss, evaluate_run(longer).loss
    return {
        "run": folder.name,
        "context": context,
        "loss": f"{loss:.4f}",
        f"loss at {FACTOR * context}": f"{long_loss:.4f}",
        "difference": f"{long_loss - loss:+.4f}",
        "characters/s": round(last["step"] * options.batch_size * context / last["cpu_s"]),
    }


def main() -> None:
    """Print a row for every finished run."""
    (root,) = (Path(argument) for argument in sys.argv[1:] if argument != "--json")
    runs = sorted(path.parent for path in root.glob("reproduce-windows-shakespeare/*/config.json"))
    rows = [found for found in map(row, runs) if found is not None]
    report("Windows of 16 keys on Tiny Shakespeare", rows)


if __name__ == "__main__":
    main()
