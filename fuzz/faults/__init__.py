"""Trainings with disk failures, kills, NaN in the data, or a clock that is set back: nothing saved may be lost."""
