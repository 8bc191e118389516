"""Games on the heads of a decoder from the command line: dividends of every layer, and the calibration that follows."""
