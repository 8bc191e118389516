"""Dividends of a model in a folder that resumes, and the salient groups that follow from them."""

from diabat.runs.heads.analysis.choice import Choice, Method, calibration_of, choose
from diabat.runs.heads.analysis.folder import Analysis, read_analysis
from diabat.runs.heads.analysis.measure import analyse
from diabat.runs.heads.analysis.request import Options

__all__ = ["Analysis", "Choice", "Method", "Options", "analyse", "calibration_of", "choose", "read_analysis"]
