"""The compiled toolbox: how kernels are compiled, SIMD lanes, counter-based random numbers, threads, memory limits.

It contains no physics, and imports nothing from diabat except the checks.
"""
