"""Games on the heads of a decoder trained for the purpose: dividends, calibration, surrogate fits.

python -m benchmarks.heads_study FOLDER [--seeds 3] [--workers 2] [--json]
"""
