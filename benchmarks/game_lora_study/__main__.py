"""A grouped-query decoder trained here, then fine-tuned with each loss on heads: coupling, redundancy, truth."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import workers
from benchmarks.game_lora_study import decoder, figures, tables
from benchmarks.game_lora_study.arms import ARMS, Run, compute, compute_base
from benchmarks.measure import report
from diabat.files import parse_json, read_file, replace_file, to_json


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.game_lora_study", description=__doc__)
    parser.add_argument("folder", type=Path, help="for results and figures; finished runs are kept")
    parser.add_argument("--seeds", type=int, default=3, help="of the fine-tuning")
    parser.add_argument("--steps", type=int, default=300, help="of each fine-tuning")
    parser.add_argument("--base-steps", type=int, default=decoder.STEPS, help="of the training of the base")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread")
    parser.add_argument("--json", action="store_true", help="one line of JSON per table")
    arguments = parser.parse_args()
    folder, sizes = arguments.folder, {"steps": arguments.steps, "base_steps": arguments.base_steps}
    folder.mkdir(parents=True, exist_ok=True)
    known = folder / "sizes.json"
    if not known.exists():
        replace_file(known, to_json(sizes))
    elif (found := parse_json(read_file(known, 1 << 16))) != sizes:
        parser.error(f"folder: expected runs with {sizes}, got {found}; choose another folder")
    runs = [Run(arm, seed) for seed in range(arguments.seeds) for arm in ARMS]
    with workers.started(arguments.workers) as processes:
        if not (folder / "before.json").exists():
            steps = arguments.base_steps
            processes.run("base model", [(compute_base, (folder, steps))], steps)
        missing = [run for run in runs if not run.path(folder).exists()]
        jobs = [(compute, (run, folder, arguments.steps)) for run in missing]
        processes.run("fine-tuning", jobs, arguments.steps * len(missing))
    for title, rows in tables.every(folder, arguments.seeds).items():
        report(title, rows)
    figures.draw(folder)


if __name__ == "__main__":
    main()
