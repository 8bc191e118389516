"""Trainings with disk failures, kills, or NaN in the data: nothing saved may be lost."""
