"""The settings of a kernel as its caller gave them: read by name and kind, unknown names refused.

given = Settings({"tile_m": "64", "omit_pingpong": "all"})
given.integer("tile_m", 32)      # 64
given.refuse_unread("gemm")      # names nobody read are a mistake of the caller
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npu_tools.errors import UnusableInput

Value = int | str | bool
_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}
MAX_EXTENT = 1 << 40
"""No size of a kernel may be larger; beyond it the caller mistyped."""


class Settings:
    """Settings by name; numbers may be given as text, as the command line has them."""

    def __init__(self, raw: Mapping[str, object] | None = None) -> None:
        self._raw = dict(raw or {})
        self._read: list[str] = []

    def has(self, name: str) -> bool:
        """Whether the caller set this one."""
        return self._raw.get(name) is not None

    def integer(self, name: str, default: int, *, least: int = 1) -> int:
        """A whole number of at least `least`.

        Raises:
            UnusableInput: it is something else.
        """
        self._read.append(name)
        value = self._raw.get(name)
        if value is None:
            return default
        text = str(value).strip()
        if isinstance(value, bool) or not text.lstrip("-").isdecimal():
            raise UnusableInput(f"{name} must be a whole number, not {text[:40]!r}")
        number = int(text)
        if not least <= number <= MAX_EXTENT:
            raise UnusableInput(f"{name} must lie between {least} and 2^40, not {text[:40]}")
        return number

    def word(self, name: str, default: str, choices: Sequence[str]) -> str:
        """One of a few words; dashes and underscores are the same.

        Raises:
            UnusableInput: it is none of them.
        """
        self._read.append(name)
        value = self._raw.get(name)
        if value is None:
            return default
        wanted = _plain(str(value))
        for choice in choices:
            if _plain(choice) == wanted:
                return choice
        raise UnusableInput(f"{name} must be one of {', '.join(repr(choice) for choice in choices)}, not {value!r}")

    def flag(self, name: str, default: bool) -> bool:
        """Yes or no.

        Raises:
            UnusableInput: it is neither.
        """
        self._read.append(name)
        value = self._raw.get(name)
        if value is None:
            return default
        text = str(value).strip().casefold()
        if text in _TRUE | _FALSE:
            return text in _TRUE
        raise UnusableInput(f"{name} must be true or false, not {text[:40]!r}")

    def refuse_unread(self, kernel: str) -> None:
        """Say so when a setting was given that this kernel does not have.

        Raises:
            UnusableInput: there is one.
        """
        unread = sorted(set(self._raw) - set(self._read))
        if unread:
            known = ", ".join(dict.fromkeys(self._read))
            raise UnusableInput(f"{kernel} has no setting {', '.join(unread)[:200]}; it has {known}")


def _plain(word: str) -> str:
    return word.strip().casefold().replace("_", "-")
