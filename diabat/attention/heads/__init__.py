"""Games on the attention heads of Hugging Face decoders: coalitions, dividends, salient groups, calibration."""

from diabat.attention.games.indices import harsanyi_dividends
from diabat.attention.heads.calibration import Calibration, ColumnSums, calibrate
from diabat.attention.heads.dividends import Dividends, low_order_coalitions
from diabat.attention.heads.game import HeadCoalitions
from diabat.attention.heads.interaction.measure import HeadInteractions, LayerInteraction
from diabat.attention.heads.salient import common, max_dividend
from diabat.attention.heads.search import Found, Surrogate, fit_surrogate, surrogate
from diabat.attention.heads.values import AnswerF1, Value

__all__ = [
    "AnswerF1",
    "Calibration",
    "ColumnSums",
    "Dividends",
    "Found",
    "HeadCoalitions",
    "HeadInteractions",
    "LayerInteraction",
    "Surrogate",
    "Value",
    "calibrate",
    "common",
    "fit_surrogate",
    "harsanyi_dividends",
    "low_order_coalitions",
    "max_dividend",
    "surrogate",
]
