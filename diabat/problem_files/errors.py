"""The error of all problem files."""

from diabat.checks import ArgumentError


class ProblemFileError(ArgumentError):
    """A file that is not a valid problem; the message names the file and what is wrong."""
