"""Games on the attention heads of Hugging Face decoders: coalitions, dividends, calibration, interaction."""

from diabat.attention.games.indices import harsanyi_dividends
from diabat.attention.heads.calibration import Calibration, ColumnSums, calibrate
from diabat.attention.heads.coalitions import HeadCoalitions
from diabat.attention.heads.dividends import Dividends, common, max_dividend, small_coalitions
from diabat.attention.heads.interactions import HeadInteractions, LayerInteraction
from diabat.attention.heads.search import SearchResult, Surrogate, fit_surrogate, surrogate
from diabat.attention.heads.summary import DividendSummary
from diabat.attention.heads.values import AnswerF1, Value

__all__ = [
    "AnswerF1",
    "Calibration",
    "ColumnSums",
    "DividendSummary",
    "Dividends",
    "HeadCoalitions",
    "HeadInteractions",
    "LayerInteraction",
    "SearchResult",
    "Surrogate",
    "Value",
    "calibrate",
    "common",
    "fit_surrogate",
    "harsanyi_dividends",
    "max_dividend",
    "small_coalitions",
    "surrogate",
]
