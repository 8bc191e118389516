"""Program of each torchrun process: print its rank, and train: ``-m fuzz.faults.shared RUN STEPS``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from fuzz.tiny import tiny_train


def main(run: Path, steps: int) -> None:
    """Train for some steps in a folder, on from where the run is."""
    torch.set_num_threads(1)
    rank = os.environ["RANK"]
    resume = (run / "config.json").exists()
    (run.parent / f"{run.name}-{rank}.pid").write_text(str(os.getpid()))
    tiny_train(run, resume=resume, max_epochs=10_000, max_steps=steps, patience=10_000, checkpoint_every=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
