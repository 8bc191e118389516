"""Templates: how the rows of a data set become questions.

    task: classification                  # the group that the template belongs to; optional
    value: log_odds                       # log_odds, option_log_odds or f1
    dataset: {path: stanfordnlp/sst2}     # arguments of datasets.load_dataset
    splits: {train: train, test: validation}
    earlier: context                      # optional: rows before with the same value in this column
    text: "Sentence: {{ sentence }}"      # Jinja, over the columns of the row
    choices: [positive, negative]         # texts, or a Jinja expression that gives them
    label: label                          # an expression; of a ClassLabel column it is the NAME of the class
    labels: {positive: positive}          # from what the label is called in the data to the choice
    answers: answers.text                 # in place of choices and label

Columns of class labels hold the names of the classes, never their numbers.  Templates run in Jinja's sandbox, and
what is not defined is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from diabat.checks import ArgumentError, check_choice, did_you_mean
from diabat.config.errors import ConfigError
from diabat.config.yaml_files import parse_yaml, read_text
from diabat.files import digest

VALUES = ("log_odds", "option_log_odds", "f1")
_DATASET = ("path", "name", "data_dir", "data_files", "revision")
_KEYS = ("task", "value", "dataset", "splits", "earlier", "text", "choices", "label", "labels", "answers")
_REQUIRED = ("value", "dataset", "splits", "text")


class Skipped(Exception):  # noqa: N818 - not a failure
    """The row makes no question; the message is the reason, as it is counted."""


@dataclass(frozen=True)
class Template:
    """A template as read; see the module for its keys.

    Attributes:
        name: Name of the file without its suffix.
        sha256: Checksum of the file.
    """

    name: str
    sha256: str
    value: str
    dataset: Mapping[str, Any]
    splits: Mapping[str, str]
    text: str
    task: str | None = None
    earlier: str | None = None
    choices: tuple[str, ...] | str | None = None
    label: str | None = None
    labels: Mapping[str, str] | None = None
    answers: str | None = None

    def question(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The question of a row.

        Raises:
            Skipped: If the row has no label, no answer, or equal choices.
            ArgumentError: If a column is missing, or gives something of another type.
        """
        text = self._evaluate("text", self._parts.text, row)
        if not text.strip():
            raise ArgumentError("text", "expected a text that is not empty, got an empty one.")
        if self.answers is not None:
            return {"text": text, "answers": self._texts("answers", self._parts.answers, row)}
        choices = self._texts("choices", self._parts.choices, row)
        label = self._evaluate("label", self._parts.label, row)
        if label is None or label == "":
            raise Skipped("no label")
        if len(set(choices)) < len(choices):
            raise Skipped("equal choices")
        name = str(label).lower() if isinstance(label, bool) else str(label).strip()
        if self.labels is not None:
            if name not in self.labels:
                raise ArgumentError("label", f"expected one of {', '.join(self.labels)}, got {label!r}.")
            name = self.labels[name]
        if name not in choices:
            raise ArgumentError("label", f"expected one of the choices {choices}, got {label!r}.")
        return {"text": text, "choices": choices, "label": name}

    def _texts(
        self, key: str, evaluate: Callable[[Mapping[str, Any]], Any], row: Mapping[str, Any]
    ) -> list[str]:
        found = self._evaluate(key, evaluate, row)
        if not isinstance(found, list | tuple) or not all(isinstance(text, str) for text in found):
            raise ArgumentError(key, f"expected a list of texts, got {found!r:.60}.")
        if not found or not all(text.strip() for text in found):
            raise Skipped(f"no {key}")
        return [text.strip() for text in found]

    def _evaluate(
        self, key: str, evaluate: Callable[[Mapping[str, Any]], Any], row: Mapping[str, Any]
    ) -> Any:
        import jinja2

        try:
            found = evaluate(row)
            if isinstance(found, jinja2.Undefined):
                str(found)  # raises and says what is undefined
        except jinja2.UndefinedError as error:
            raise ArgumentError(
                key, f"expected columns among {', '.join(row)}, got: {error.message}."
            ) from None
        # Whatever the operations of an expression may raise.
        except Exception as error:
            raise ArgumentError(key, f"cannot be computed ({type(error).__name__}: {error}).") from None
        return found

    @cached_property
    def _parts(self) -> _Parts:
        return _Parts(self)


class _Parts:
    """The compiled parts of a template: functions of a row."""

    def __init__(self, template: Template) -> None:
        from jinja2 import StrictUndefined
        from jinja2.sandbox import SandboxedEnvironment

        # Texts are prompts, not web pages: nothing is escaped.
        self._environment = SandboxedEnvironment(
            undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
        )
        source = self._compiled("text", self._environment.from_string, template.text)
        self.text: Callable[[Mapping[str, Any]], Any] = source.render
        choices = template.choices
        self.choices = (
            (lambda row: choices) if isinstance(choices, tuple) else self._expression("choices", choices)
        )
        self.label = self._expression("label", template.label)
        self.answers = self._expression("answers", template.answers)

    def _expression(self, key: str, text: str | None) -> Callable[[Mapping[str, Any]], Any]:
        if text is None:
            return lambda row: None
        compiled = self._compiled(
            key, lambda t: self._environment.compile_expression(t, undefined_to_none=False), text
        )
        return lambda row: compiled(**row)

    def _compiled(self, key: str, compile_: Callable[[str], Any], text: str) -> Any:
        from jinja2 import TemplateSyntaxError

        try:
            return compile_(text)
        except TemplateSyntaxError as error:
            raise ArgumentError(key, f"line {error.lineno}: {error.message}.") from None


def shipped_templates() -> dict[str, Path]:
    """Templates that come with diabat, by name."""
    folder = Path(str(files("diabat") / "runs" / "heads" / "questions" / "templates"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read_template(path: Path) -> Template:
    """Read a template and compile its parts.

    Raises:
        ConfigError: If the file cannot be read, is not YAML, or a key is missing, unknown or not valid; the message
            names the file.
    """
    text = read_text(path)
    try:
        template = _template(path.stem, digest(text.encode()), parse_yaml(text, f"'{path}'"))
        _ = template._parts
    except ConfigError:
        raise
    except ArgumentError as error:
        raise ConfigError(f"'{path}'", str(error)) from None
    return template


def _template(name: str, sha256: str, content: Any) -> Template:
    if not isinstance(content, dict):
        raise ArgumentError(f"expected a mapping of keys to values, got a {type(content).__name__}.")
    for key in content:
        if key not in _KEYS:
            raise ArgumentError(key, f"expected one of {', '.join(_KEYS)}.{did_you_mean(key, _KEYS)}")
    for key in _REQUIRED:
        if key not in content:
            raise ArgumentError(key, "this key is required.")
    for key in ("task", "earlier", "text", "label", "answers"):
        if key in content:
            _check_text(key, content[key])
    check_choice("value", content["value"], VALUES)
    _check_dataset(content["dataset"])
    splits = content["splits"]
    if not isinstance(splits, dict) or not splits or not all(isinstance(s, str) for s in splits.values()):
        raise ArgumentError("splits", f"expected a mapping like train: train, got {splits!r:.60}.")
    if content["value"] == "f1":
        _check_keys(content, ("answers",), ("choices", "label", "labels"))
    else:
        _check_keys(content, ("choices", "label"), ("answers",))
        content = {**content, "choices": _checked_choices(content)}
    return Template(name, sha256, **content)


def _check_keys(content: Mapping[str, Any], needed: tuple[str, ...], excluded: tuple[str, ...]) -> None:
    for key in needed:
        if key not in content:
            raise ArgumentError(key, f"this key is required with value: {content['value']}.")
    for key in excluded:
        if key in content:
            raise ArgumentError(key, f"cannot be combined with value: {content['value']}.")


def _check_dataset(dataset: Any) -> None:
    if not isinstance(dataset, dict) or not isinstance(dataset.get("path"), str):
        raise ArgumentError("dataset", f"expected a mapping with a path, got {dataset!r:.60}.")
    for key in dataset:
        if key not in _DATASET:
            raise ArgumentError(
                f"dataset.{key}", f"expected one of {', '.join(_DATASET)}.{did_you_mean(key, _DATASET)}"
            )
    if "://" in dataset["path"]:  # not shown: an address may hold an access token
        raise ArgumentError("dataset.path", "expected the name of a data set or a folder, got an address.")


def _checked_choices(content: Mapping[str, Any]) -> tuple[str, ...] | str:
    choices, labels = content["choices"], content.get("labels")
    if isinstance(choices, str):
        _check_text("choices", choices)
    elif not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(c, str) for c in choices):
        raise ArgumentError(
            "choices", f"expected a list of two texts or more, or an expression, got {choices!r:.60}."
        )
    if labels is not None:
        if not isinstance(labels, dict) or not all(isinstance(choice, str) for choice in labels.values()):
            raise ArgumentError("labels", f"expected a mapping of labels to choices, got {labels!r:.60}.")
        for name, choice in labels.items():
            if isinstance(choices, list) and choice not in choices:
                raise ArgumentError(
                    f"labels.{name}", f"expected one of the choices {choices}, got {choice!r}."
                )
    return choices if isinstance(choices, str) else tuple(choices)


def _check_text(key: str, text: Any) -> None:
    if not isinstance(text, str) or not text.strip():
        raise ArgumentError(key, f"expected a text, got {text!r:.60}.")
