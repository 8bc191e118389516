"""One table of timed cases, one runner, one report: ``python -m benchmarks --help``."""
