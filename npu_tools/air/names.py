"""Names of SSA values while a program is read, region in region."""

from __future__ import annotations

from xdsl.ir import SSAValue


class Names(dict[str, tuple[SSAValue, ...]]):
    """Values by name, with those of the regions around; entering a region costs nothing however many there are.

    xDSL enters a region by keeping `copy()` and working on: so the copy takes what there is, and the original, now
    empty, looks there for what it does not know itself. It is a dict by type alone, because xDSL's parser says so.
    """

    def __init__(self) -> None:
        super().__init__()
        self._here: dict[str, tuple[SSAValue, ...]] = {}
        self._around: Names | None = None

    def copy(self) -> Names:
        """What there is; this object goes on with a region inside."""
        kept = Names()
        kept._here, kept._around = self._here, self._around
        self._here, self._around = {}, kept
        return kept

    def find(self, name: str) -> tuple[SSAValue, ...] | None:
        """The values of that name here or around."""
        scope: Names | None = self
        while scope is not None:
            if (values := scope._here.get(name)) is not None:
                return values
            scope = scope._around
        return None

    def get(self, name: str, default: object = None) -> tuple[SSAValue, ...] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The values of that name, or None."""
        return self.find(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def __getitem__(self, name: str) -> tuple[SSAValue, ...]:
        if (values := self.find(name)) is None:
            raise KeyError(name)
        return values

    def __setitem__(self, name: str, values: tuple[SSAValue, ...]) -> None:
        self._here[name] = values
