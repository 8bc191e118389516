"""Dividends of games on attention heads, layer by layer: a table and a figure."""

from diabat.studies.heads.figure import plot_dividends
from diabat.studies.heads.report import HeadsReport

__all__ = ["HeadsReport", "plot_dividends"]
