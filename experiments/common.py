"""What the scripts share: tables, results that are kept, worker processes, training of small decoders."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch

from diabat.checks import ArgumentError
from diabat.cli.failures import sentence
from diabat.files import replace_file
from diabat.lab.tasks.data import DataError
from diabat.lab.training import TrainingError

R = TypeVar("R")
Row = dict[str, Any]
Titled = Iterator[tuple[str, Row]]
"""Rows, each with the title of its table."""


def parser(doc: str | None, *, study: bool = False) -> argparse.ArgumentParser:
    """A command line with ``--json``; of a study with folder, seeds and workers."""
    command = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--json", action="store_true", help="one line of JSON per table")
    if study:
        command.add_argument("folder", type=Path, help="of the results; finished ones are kept")
        command.add_argument("--seeds", type=int, default=3)
        command.add_argument("--workers", type=int, default=2, help="processes of one thread")
    return command


def run_script(main: Callable[[], object]) -> None:
    """Run a script; what it refuses is one sentence, not a traceback, and so is a file that is missing."""
    try:
        main()
    except (ArgumentError, DataError, TrainingError, OSError) as error:
        raise SystemExit(sentence(error)) from None


def report(
    title: str, rows: Sequence[Row], *, as_json: bool, formats: Mapping[str, str] | None = None
) -> None:
    """Print rows as a table, or as one line of JSON; ``formats`` are those of numbers in a column, else ``.3g``."""
    if as_json:
        print(json.dumps({"title": title, "rows": rows}))
        return
    if not rows:
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for key in rows[0]:
        table.add_column(key, justify="right" if isinstance(rows[0][key], float) else "left")
    for row in rows:
        table.add_row(*(_cell(row.get(key), (formats or {}).get(key, ".3g")) for key in rows[0]))
    Console(width=200, highlight=False).print(table)


def print_tables(titled: Titled, *, as_json: bool, prefix: str = "") -> dict[str, list[Row]]:
    """Print a table of the rows of every title, and return the tables."""
    tables: dict[str, list[Row]] = {}
    for title, row in titled:
        tables.setdefault(title, []).append(row)
    for title, rows in tables.items():
        report(prefix + title, rows, as_json=as_json)
    return tables


def _cell(value: Any, form: str) -> str:
    if isinstance(value, list):
        return ", ".join(_cell(one, form) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else f"{value:{form}}" if isinstance(value, float) else str(value)


def keep(path: Path, content: object) -> None:
    """Write JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(content).encode())


def kept(path: Path) -> Any:
    """What :func:`keep` has written."""
    return json.loads(path.read_text(encoding="utf-8"))


def once(path: Path, compute: Callable[[], object]) -> Any:
    """What a file keeps, computed if it is not there."""
    if not path.exists():
        keep(path, compute())
    return kept(path)


def same_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a folder whose results were made with other settings."""
    if (stored := once(folder / "settings.json", lambda: settings)) != settings:
        raise SystemExit(f"folder: expected results with {dict(settings)}, got {stored}; choose another one.")


def calls(function: Callable[..., R], jobs: Sequence[tuple[Any, ...]], workers: int) -> Iterator[R]:
    """Results of ``function(*job)`` as they come, in this process or in workers of one thread each.

    A worker gets its next job when it has done the last one, so that none is begun after Ctrl-C or a failure.
    """
    if workers == 1:
        yield from (function(*job) for job in jobs)
        return
    todo = iter(jobs)
    with ProcessPoolExecutor(
        min(workers, len(jobs)), get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        running = {pool.submit(function, *job) for job in islice(todo, workers)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
                running |= {pool.submit(function, *job) for job in islice(todo, 1)}


def attend_back(model: Any, steps: Sequence[int], strength: float = 6.0) -> None:
    """Let head k of the first layer of a Llama with biases in its attention begin by attending steps[k] tokens back.

    Small decoders learn within minutes what takes two layers if the first one begins so.
    """
    first, config = model.model.layers[0].self_attn, model.config
    turn = model.model.rotary_emb.inv_freq[:4]
    size = config.hidden_size // config.num_attention_heads
    with torch.no_grad():
        for head, back in enumerate(steps):
            at = torch.arange(4)
            key = head * config.num_key_value_heads // config.num_attention_heads
            first.k_proj.bias[at + key * size] = strength
            # q R_{j-i} k is largest at j = i - back.
            first.q_proj.bias[at + head * size] = strength * (turn * back).cos()
            first.q_proj.bias[at + head * size + size // 2] = -strength * (turn * back).sin()


def fit(model: Any, backward: Callable[[int], None], steps: int, rate: float) -> Any:
    """Train with AdamW on the gradients that ``backward`` adds in every step; the rate falls over the last 40 %."""
    optimiser = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / 50, max(0.02, 2.5 * (1 - step / steps)), 1.0)
    )
    for step in range(steps):
        optimiser.zero_grad()
        backward(step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return model.eval()
