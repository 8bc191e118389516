"""Cost against size: the curves of docs/performance.md.

python -m benchmarks.growth [--quick] [--only states dense ...] [--json] [--figure FOLDER]

Median CPU time of rounds in which all lines of a section take turns, on one thread; threads that a peer starts count
as well.  A line ends at the first size at which one call exceeds the limit.  Peers run where they are installed; the
others are named in the output.
"""
