"""Qiskit circuits, and the engines that run them: Aer and any primitive."""
