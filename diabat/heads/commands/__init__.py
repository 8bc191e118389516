"""``diabat heads``: a model analysed layer by layer, its single heads scored, and the calibration that follows."""
