"""Progress bars with the remaining time, on standard error."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


@cache
def stderr_console() -> Console:
    """The console of all bars: bars that are shown at the same time stand below each other."""
    from rich.console import Console

    return Console(stderr=True)


def new_bar(*, percent: bool = False, window: float = 30.0, shown: bool = True) -> Progress:
    """Create a bar, not yet shown: description, bar, steps done (or their percentage) and remaining time.

    ``window`` are the seconds over which the speed is averaged; if not ``shown`` nothing is printed.
    """
    import rich.progress as rich

    done = rich.TaskProgressColumn() if percent else rich.MofNCompleteColumn()
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), done, rich.TimeRemainingColumn())
    return rich.Progress(*columns, console=stderr_console(), speed_estimate_period=window, disable=not shown)


def without_bars(line: str) -> None:
    """Print a line for a log, where standard error is no terminal and no bar moves."""
    if not stderr_console().is_terminal:
        stderr_console().out(line, highlight=False)


def compiling_bar() -> Progress:
    """Create a bar, not yet shown, that moves without an end; it disappears when the block is left."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=stderr_console(), transient=True)
    bar.add_task("compiling kernels, at the first use of this backend", total=None)
    return bar
