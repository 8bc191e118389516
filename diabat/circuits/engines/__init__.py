"""Engines that run a Trotter plan: the interface, and one package for each kind of engine."""
