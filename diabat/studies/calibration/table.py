"""The result of a calibration: one row for each annealing time, as JSON and as a table."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diabat.studies.calibration.render import COLUMNS, render

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class CalibrationRow:
    """One annealing time; every field is explained in :data:`diabat.studies.calibration.COLUMNS`."""

    annealing_time_ns: float
    steps: int
    predicted_beta_h: float
    predicted_beta_J: float  # noqa: N815 - the field's name
    fitted_beta_h: float | None
    fitted_beta_h_low: float | None
    fitted_beta_h_high: float | None
    fitted_beta_J: float | None  # noqa: N815 - as above
    fitted_beta_J_low: float | None  # noqa: N815 - as above
    fitted_beta_J_high: float | None  # noqa: N815 - as above
    programmed_h_rms: float
    programmed_J_rms: float  # noqa: N815 - as above
    tv_before: float | None
    tv_after: float | None
    tv_own: float | None
    kl_before: float | None
    kl_own: float | None
    explained: float | None
    pseudo_r2: float | None


@dataclass(frozen=True)
class CalibrationTable:
    """Calibration of one schedule.

    Attributes:
        schedule: Name of the schedule.
        protocol: ``fast``, ``standard``, or the word of a schedule of one's own; None for a file.
        num_spins: n of the SK problems.
        strength: Their g, the standard deviation of h and of √n · J.
        instances: Number of different J, which are the units of the confidence intervals.
        queries: Number of different h for each J.
        num_reads: Reads per problem behind the fits; None for exact state probabilities.
        level: Confidence level of the intervals.
        engine: Engine of the anneal.
        seed: Seed of problems and reads.
        rows: One for each annealing time, ascending.
    """

    schedule: str
    protocol: str | None
    num_spins: int
    strength: float
    instances: int
    queries: int
    num_reads: int | None
    level: float
    engine: str
    seed: int
    rows: list[CalibrationRow]

    def to_json(self) -> str:
        """Return the table with the definitions of its columns."""
        content = {**dataclasses.asdict(self), "definitions": COLUMNS}
        return json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)

    @property
    def label(self) -> str:
        """Name and protocol of the schedule."""
        return self.schedule if self.protocol is None else f"{self.schedule} ({self.protocol})"

    def table(self, *, narrow: bool = False) -> Table:
        """Build a rich table, one row for each annealing time.

        Args:
            narrow: Show the columns that fit on 80 characters.
        """
        return render(self, narrow=narrow)
