"""Options: key, type, default value and allowed values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from tideline_table.errors import InvalidOption

T = TypeVar("T", int, float, bool, str)


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One option: its key, default (which determines the type), unit, allowed values and description."""

    key: str
    default: T
    doc: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    aliases: tuple[str, ...] = ()
    """Other keys that Apache Hudi's releases use for the same option."""
    maximum: float | None = None
    is_list: bool = False
    """Whether the value may be a comma-separated list of several choices, other than the default."""

    def parse(self, value: object) -> T:
        """Return `value` (text or typed) as this option's type, or raise `InvalidOption`, which names what is allowed."""
        try:
            parsed = _parse(value, type(self.default))
        except ValueError:
            raise self._refusal(value) from None
        if self.choices:
            parsed = self._chosen(str(parsed), value)
        if self.minimum is not None and isinstance(parsed, int | float) and not parsed >= self.minimum:
            raise self._refusal(value)
        if self.maximum is not None and isinstance(parsed, int | float) and not parsed <= self.maximum:
            raise self._refusal(value)
        return cast("T", parsed)

    def _chosen(self, text: str, value: object) -> str:
        """Return the choice, or the list of choices, that `text` names in any case."""
        spelled = {choice.lower(): choice for choice in self.choices}
        names = (
            [spelled.get(name.strip().lower(), "") for name in text.split(",")] if self.is_list else [spelled.get(text.lower(), "")]
        )
        if not all(names) or (len(names) > 1 and self.default in names):
            raise self._refusal(value)
        return ",".join(names)

    def _refusal(self, value: object) -> InvalidOption:
        kind = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[type(self.default)]
        expected = " or ".join(self.choices) if self.choices else kind
        expected += f", or several of them without {self.default}" if self.is_list else ""
        if self.minimum is not None:
            expected += f" of at least {self.minimum:g}"
        if self.maximum is not None:
            expected += f" {'and' if self.minimum is not None else 'of'} at most {self.maximum:g}"
        if self.unit:
            expected += f" ({self.unit})"
        return InvalidOption(f"option {self.key!r} has the value {str(value)!r}", expected=expected)


def _parse(value: object, kind: type) -> int | float | bool | str:
    text = str(value).strip()
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ValueError(text)
    if kind is int:
        return int(text)
    if kind is float:
        return float(text)
    return text
