"""The error of all problem files."""


class ProblemFileError(ValueError):
    """A file that is not a valid problem; the message names the file and what is wrong."""
