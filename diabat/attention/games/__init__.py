"""Cooperative games on tokens: exact and sampled Shapley values, Banzhaf indices and interactions."""

from diabat.attention.games.estimate import Estimate
from diabat.attention.games.indices import (
    banzhaf,
    banzhaf_interaction,
    gibbs_interaction,
    gibbs_marginal,
    harsanyi_dividends,
    k_sii,
    shapley,
    shapley_interaction,
)
from diabat.attention.games.sampling import sample_banzhaf, sample_interaction, sample_shapley
from diabat.attention.games.tables import all_coalitions, inverse_mobius, mobius, value_table
from diabat.attention.games.value_games import FunctionGame, NormGame

__all__ = [
    "Estimate",
    "FunctionGame",
    "NormGame",
    "all_coalitions",
    "banzhaf",
    "banzhaf_interaction",
    "gibbs_interaction",
    "gibbs_marginal",
    "harsanyi_dividends",
    "inverse_mobius",
    "k_sii",
    "mobius",
    "sample_banzhaf",
    "sample_interaction",
    "sample_shapley",
    "shapley",
    "shapley_interaction",
    "value_table",
]
