"""Calls with random arguments, held against enumeration, against what a sum or a range must be, or refused."""
