"""How far diabatic annealing is from Boltzmann's law, and what helps: the numbers and figures of docs/dqa.md.

python -m benchmarks.dqa_fidelity [--json] [--figures FOLDER] [SECTION ...]

The truth is exact enumeration.  Laws of the simulated anneals are exact too (tables of all 2^n states, no reads),
so that no number here carries sampling noise beyond that of the random instances, which have fixed seeds.
"""
