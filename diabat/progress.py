"""A progress bar with the time left, on standard error."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress


def new_bar(*, percent: bool = False) -> Progress:
    """A bar that is not shown yet: description, bar, steps done (or their share in percent) and time left."""
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
    return Progress(*columns, console=Console(stderr=True))


def progress_bar(wanted: bool) -> AbstractContextManager[Any]:
    """Show a bar while the block runs, and give it; None in its place if none is wanted."""
    return new_bar() if wanted else nullcontext()
