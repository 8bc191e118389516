"""Learned anneals: short plans whose angles are trained so that their reads follow Boltzmann's law at beta = 1."""
