"""Measurements behind docs/results.md; each module runs on its own: python -m benchmarks.exact."""
