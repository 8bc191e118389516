"""Calibrated attention (GAC): its mathematics, the attention function behind ``"gac"``, and its file beside a model."""
