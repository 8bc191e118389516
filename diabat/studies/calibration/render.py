"""The columns of a calibration table in words, and as a table in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from diabat.studies.calibration.table import CalibrationRow, CalibrationTable

COLUMNS = {
    "annealing_time_ns": "annealing time in ns",
    "steps": "Trotter steps",
    "predicted_beta_h": "beta_h = 2 pi int B sin(2 pi int A) of the schedule (A, B in GHz, t in ns), weak fields",
    "predicted_beta_J": "beta_J = 2 pi int B sin(4 pi int A), weak couplings",
    "fitted_beta_h": "predicted_beta_h times the scale of the fields by maximum pseudo-likelihood",
    "fitted_beta_h_low": "lower end of its confidence interval over instances",
    "fitted_beta_h_high": "upper end",
    "fitted_beta_J": "predicted_beta_J times the scale of the couplings, fitted together with beta_h",
    "fitted_beta_J_low": "lower end of its confidence interval over instances",
    "fitted_beta_J_high": "upper end",
    "programmed_h_rms": "root mean square of the programmed fields h/beta_h, hardware units (factor of B/2)",
    "programmed_J_rms": "root mean square of the programmed couplings J/beta_J, hardware units",
    "tv_before": "total variation to the target (beta = 1), predicted betas programmed; mean over problems",
    "tv_after": "the same with the fitted betas programmed",
    "tv_own": "total variation between the sampler and Boltzmann at the fitted betas: what no beta repairs",
    "kl_before": "KL(sampler || target) in nats, predicted betas programmed",
    "kl_own": "KL(sampler || Boltzmann at the fitted betas) in nats",
    "explained": "share of the pseudo-likelihood gain over coin flips that the fitted Boltzmann law explains; 1 is all",
    "pseudo_r2": "McFadden's 1 - l(fit)/l(0): 0 for coin flips, 1 for spins that follow from the others",
}


def render(calibration: CalibrationTable, *, narrow: bool = False) -> Table:
    """Build a rich table; ``narrow`` fits on 80 characters."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0) if narrow else (0, 1),
        pad_edge=False,
        show_edge=False,
        title=_title(calibration),
        title_justify="left",
        title_style="bold",
    )
    columns = [(head, cell) for head, cell, always in _CELLS if always or not narrow]
    for head, _ in columns:
        table.add_column(head, justify="right", no_wrap=True)
    for row in calibration.rows:
        table.add_row(*(cell(row) for _, cell in columns))
    return table


def _title(calibration: CalibrationTable) -> str:
    source = "exact laws" if calibration.num_reads is None else f"{calibration.num_reads} reads each"
    return (
        f"{calibration.label}\n"
        f"SK n = {calibration.num_spins}, g = {calibration.strength:g}, {calibration.instances} J x "
        f"{calibration.queries} h, {source}; ± {100 * calibration.level:g} % over J"
    )


def _number(name: str, form: str) -> Callable[[CalibrationRow], str]:
    def cell(row: CalibrationRow) -> str:
        value = getattr(row, name)
        return "–" if value is None else format(value, form)

    return cell


def _beta(name: str) -> Callable[[CalibrationRow], str]:
    """β, with ± half of its interval where there is one; four digits or so."""

    def cell(row: CalibrationRow) -> str:
        value, high = getattr(row, name), getattr(row, f"{name}_high", None)
        if value is None:
            return "–"
        form = ".3f" if abs(value) < 10 else ".2f" if abs(value) < 100 else ".1f"
        return format(value, form) + ("" if high is None else f" ± {format(high - value, form)}")

    return cell


# Header, cell, and whether it stands in a narrow table.
_CELLS: tuple[tuple[str, Callable[[CalibrationRow], str], bool], ...] = (
    ("t_a\nns", _number("annealing_time_ns", "g"), True),
    ("steps", _number("steps", "d"), True),
    ("β_h\npredicted", _beta("predicted_beta_h"), True),
    ("β_h\nfitted", _beta("fitted_beta_h"), True),
    ("β_J\npredicted", _beta("predicted_beta_J"), True),
    ("β_J\nfitted", _beta("fitted_beta_J"), True),
    ("h rms\nhardware", _number("programmed_h_rms", ".4f"), False),
    ("J rms\nhardware", _number("programmed_J_rms", ".4f"), False),
    ("TV\nbefore", _number("tv_before", ".4f"), True),
    ("TV\nafter", _number("tv_after", ".4f"), True),
    ("TV\nown β", _number("tv_own", ".4f"), False),
    ("KL\nbefore", _number("kl_before", ".1e"), False),
    ("explained", _number("explained", ".3f"), False),
)
