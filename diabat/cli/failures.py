"""Turn exceptions into one sentence on stderr and an exit code."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand

from diabat.checks import ArgumentError, escaped
from diabat.cli.output import say
from diabat.documents.errors import ConfigError

FAILURE, USAGE, INTERRUPTED = 1, 2, 130

# Errors of the command-line parser, which prints them itself.  Their base class moved between releases of
# typer, so it is found through a subclass that did not.
_PARSER_ERROR: type[BaseException] = next(
    c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"
)


@contextmanager
def handled(*, debug: bool) -> Iterator[None]:
    """Run a command; report what it raises in one sentence and exit with 1, 2 or 130.  Warnings are sentences, too.

    A KeyboardInterrupt of a command says what is saved and how to continue.  ``debug`` prints the traceback of an
    error before the sentence.
    """
    shown, warnings.showwarning = warnings.showwarning, _say
    try:
        yield
    except (typer.Exit, typer.Abort, BrokenPipeError, _PARSER_ERROR):
        raise
    except KeyboardInterrupt as error:
        say(f"\nInterrupted. {error}".rstrip(), err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if debug:
            say(traceback.format_exc(), err=True)
        say(f"Error: {escaped(sentence(error))}", err=True)
        raise typer.Exit(USAGE if isinstance(error, ConfigError) else FAILURE) from None
    finally:
        warnings.showwarning = shown


def _say(message: Warning | str, *place: Any, **further: Any) -> None:
    """Print a warning as a sentence, without its file and line."""
    say(f"Warning: {escaped(' '.join(str(message).split()))}", err=True)


class Command(TyperCommand):
    """A command that reports an error about an argument of its own name as one about its option: wrong usage."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except ArgumentError as error:
            named = {p.name: p.opts[0] if p.opts[0][0] == "-" else str(p.name).upper() for p in self.params}
            if isinstance(error, ConfigError) or error.argument not in named:
                raise
            raise ConfigError(named[error.argument], error.reason) from error


def sentence(error: Exception) -> str:
    """Describe an error in one line."""
    from diabat.secrets import without_secrets  # numpy comes with it, which help does not need

    text = without_secrets(" ".join(str(error).split()))
    if isinstance(error, OSError) and error.strerror:
        place = f"'{error.filename}': " if error.filename else ""
        return f"{place}{error.strerror}."
    if isinstance(error, MemoryError):
        return f"out of memory{f': {text}' if text else ''}."
    # Errors that the library raises on purpose are sentences; anything else is reported as a defect.
    on_purpose = isinstance(error, ValueError | RuntimeError | OSError | ImportError)
    if (on_purpose or type(error).__module__.startswith("diabat")) and text:
        return text
    name = type(error).__name__
    return f"unexpected {name}{f': {text}' if text else ''}. Run 'diabat --debug ...' for the traceback."
