"""Progress bars with the remaining time, on standard error."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress


def new_bar(*, percent: bool = False, window: float = 30.0, shown: bool = True) -> Progress:
    """Create a bar, not yet shown: description, bar, steps done (or their percentage) and remaining time.

    Args:
        percent: Show the percentage of the steps.
        window: Seconds over which the speed is averaged; longer than a step takes.
        shown: Show the bar; without it nothing is printed.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    done = TaskProgressColumn() if percent else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), done, TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), speed_estimate_period=window, disable=not shown)


def progress_bar(wanted: bool) -> AbstractContextManager[Any]:
    """Show a bar while the block runs, and yield it; yield None if no bar is wanted."""
    return new_bar() if wanted else nullcontext()
