"""The version, in a file that everybody may import."""

__version__ = "0.2.0.dev0"
