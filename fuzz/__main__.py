"""``python -m fuzz``: every property for its share of some minutes, in a process of its own; ``make fuzz``."""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import itertools
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import IO, Any

import torch

from fuzz.properties import PROPERTIES, Outcome, run

SEEDS = 10_000_000
"""Run k of a campaign with seed s has the seed s * SEEDS + k."""
_FORK = multiprocessing.get_context("fork")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the properties; return 1 if there is a finding."""
    options = argparse.ArgumentParser(prog="python -m fuzz")
    options.add_argument("--minutes", type=float, default=10.0, help="time to use")
    options.add_argument("--seed", type=int, default=0, help="seed of the campaign, or of the replay")
    options.add_argument("--workers", type=int, default=2, help="processes")
    options.add_argument("--only", nargs="+", metavar="NAME", help="properties, or modules like fuzz.files")
    options.add_argument("--replay", metavar="NAME", help="one run of a property here, with all its examples")
    words = options.parse_args(arguments)
    load()
    if words.replay:
        ended = [run(words.replay, words.seed, verbose=True)]
    else:
        chosen, ended = tuple(words.only or [""]), []
        names = [k for k, check in PROPERTIES.items() if k in chosen or check.__module__.startswith(chosen)]
        share = 60 * words.minutes * words.workers / max(len(names), words.workers)
        for outcome in outcomes(names, words.seed * SEEDS, share, words.workers):
            ended.append(outcome)
            if sys.stderr.isatty():
                left = (len(names) - len(ended)) * share / words.workers / 60
                state = f"\r{len(ended)} of {len(names)}, {left:.1f} min left "
                print(state, end="", file=sys.stderr, flush=True)
    print(report(ended))
    return int(any(outcome.finding for outcome in ended))


def load() -> None:
    """Define all properties."""
    torch.set_num_threads(1)
    here = Path(__file__).parent
    for path in sorted((*here.glob("calls/*.py"), *here.glob("files/*.py"))):
        importlib.import_module(f"fuzz.{path.parent.name}.{path.stem}")


def outcomes(
    names: Sequence[str], seed: int, seconds: float, workers: int, *, limit: float = 60.0, memory_mb: int = 4096
) -> Iterator[Outcome]:  # fmt: skip
    """Run every property for some seconds, with seeds from the first one on, each in a forked process.

    A crash, an example that takes longer than the limit in seconds, and a full memory are findings.
    """
    waiting = iter(names)
    running: dict[Any, tuple[Outcome, Any, IO[str]]] = {}
    while True:
        for name in itertools.islice(waiting, workers - len(running)):
            log: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process runs)
            receiver, writer = _FORK.Pipe(duplex=False)
            process = _FORK.Process(target=_serve, args=(writer, name, seed, seconds, limit, memory_mb, log))
            process.start()
            writer.close()
            running[receiver] = Outcome(name, seed=seed - 1), process, log
        if not running:
            return
        for ready in connection.wait(list(running)):
            reader: Any = ready
            outcome, process, log = running[reader]
            try:
                running[reader] = reader.recv(), process, log
            except EOFError:
                process.join()
                if process.exitcode:
                    log.seek(0)
                    outcome.finding = f"the process ended with exit code {process.exitcode}\n{log.read()}"
                    outcome.seed += 1
                for file in (reader, log):
                    file.close()
                del running[reader]
                yield outcome


def _serve(
    writer: Any, name: str, seed: int, seconds: float, limit: float, memory_mb: int, log: IO[str]
) -> None:
    faulthandler.enable(log)
    _limit_memory(memory_mb)
    total, end = Outcome(name, seed=seed - 1), time.monotonic() + seconds
    while not total.finding and (total.seed < seed or time.monotonic() < end):
        begins = partial(faulthandler.dump_traceback_later, limit, exit=True, file=log)
        one = run(name, total.seed + 1, begins=begins)
        faulthandler.cancel_dump_traceback_later()
        answers, sentences = total.answers + one.answers, total.sentences + one.sentences
        total = Outcome(name, answers, sentences, one.finding, one.seed)
        writer.send(total)


def _limit_memory(memory_mb: int) -> None:
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):  # neither Windows nor macOS has it
        return
    limit = pages * resource.getpagesize() + (memory_mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def report(ended: Sequence[Outcome]) -> str:
    """The counts of every property, and every finding with the command that replays it."""
    row = "  {:<24}{:>10}{:>12}{:>10}"
    lines = [row.format("", "answers", "sentences", "findings")]
    lines += [row.format(o.name, o.answers, o.sentences, int(bool(o.finding))) for o in ended]
    counts = ((o.answers, o.sentences, bool(o.finding)) for o in ended)
    lines.append(row.format("all", *map(sum, zip(*counts, strict=True))))
    for o in ended:
        if o.finding:
            lines.append(f"\n{o.name}: {o.finding}\n    python -m fuzz --replay {o.name} --seed {o.seed}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
