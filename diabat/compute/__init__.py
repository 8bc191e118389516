"""The compiled toolbox: how kernels are compiled, SIMD lanes, counter-based random numbers, threads, memory limits.

It knows no physics and imports nothing else from diabat but the checks.
"""
