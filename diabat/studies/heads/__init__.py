"""Dividends of games on attention heads, layer by layer: facts of each game, one table, and figures."""

from diabat.studies.heads.curves import plot_dividends
from diabat.studies.heads.heat_maps import plot_heat_maps
from diabat.studies.heads.measure import GameFacts, measure_game
from diabat.studies.heads.report import COLUMNS, HeadsReport

__all__ = ["COLUMNS", "GameFacts", "HeadsReport", "measure_game", "plot_dividends", "plot_heat_maps"]
