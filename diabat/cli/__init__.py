"""The command line ``diabat``; every command imports what it needs when it runs."""

from diabat.cli.app import app, main

__all__ = ["app", "main"]
