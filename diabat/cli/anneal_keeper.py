"""A file that always holds the best plan of a search, and a progress bar."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diabat.circuits import TrotterPlan, save_plan
from diabat.studies.learned import Watcher

if TYPE_CHECKING:
    from rich.progress import Progress

_SAVE_EVERY_S = 1.0


class Keeper(Watcher):
    """Keeps the best plan in the file, and the progress bar up to date."""

    def __init__(self, output: Path, metadata: dict[str, Any]) -> None:
        self.output, self.metadata = output, metadata
        self.best: tuple[TrotterPlan, float] | None = None
        self.saved: TrotterPlan | None = None
        self._last = -_SAVE_EVERY_S
        self._bar: Progress | None = None

    def improved(self, plan: TrotterPlan, loss: float) -> None:
        """Save, at most once a second: improvements come by the hundred."""
        self.best = plan, loss
        if time.monotonic() - self._last >= _SAVE_EVERY_S:
            self.save(plan, loss)

    def advanced(self, done: float, loss: float) -> None:
        """Move the bar."""
        if self._bar is not None:
            layers = self.best[0].steps if self.best else 0
            if not self._bar.live.is_started:  # not before: a refusal stands on a line of its own
                self._bar.start()
            self._bar.update(self._task, completed=done, description=f"loss {loss:.5f}, {layers} layers")

    def save(self, plan: TrotterPlan, loss: float) -> None:
        """Write the file."""
        self.best, self.saved, self._last = (plan, loss), plan, time.monotonic()
        self.metadata["loss"] = loss
        save_plan(self.output, plan, self.metadata)

    def last_words(self) -> str:
        """Save what is best, and say where it is and how to go on."""
        if self.best is None:
            return "Nothing was saved yet."
        plan, loss = self.best
        if self.saved is not plan:
            self.save(plan, loss)
        again = shlex.join(["--from", str(self.output), "--force"])
        return (
            f"The best plan so far ({plan.steps} layers, loss {loss:.3g}) is saved in '{self.output}'; to begin "
            f"with it, repeat the command with {again}."
        )

    @contextmanager
    def display(self, wanted: bool) -> Iterator[None]:
        """Show a bar with the time left on stderr while the block runs."""
        if not wanted:
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task("", total=1.0)
        try:
            yield
        finally:
            if self._bar.live.is_started:
                self._bar.stop()
