"""Attention calibrated by games on heads (GAC), behind ``attn_implementation="gac"``."""

from diabat.huggingface.gac.config import load_gac, read_gac, save_gac
from diabat.huggingface.gac.model import disable_gac, enable_gac, enabled_calibration, register_gac

__all__ = [
    "disable_gac",
    "enable_gac",
    "enabled_calibration",
    "load_gac",
    "read_gac",
    "register_gac",
    "save_gac",
]
