"""Measurements of backends, gradients and anneals, each as a table, JSON and a figure."""
