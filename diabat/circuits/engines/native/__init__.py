"""The engine with compiled kernels, one problem per SIMD lane."""
