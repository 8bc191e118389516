"""Attention heads as players of a cooperative game: what they are worth together, and calibration of the others."""

from diabat.attention.heads.calibration import Calibration, ColumnSums, calibrate

__all__ = ["Calibration", "ColumnSums", "calibrate"]
