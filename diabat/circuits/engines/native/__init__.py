"""The engine of compiled kernels, with problems in SIMD lanes."""
