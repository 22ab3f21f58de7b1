"""What harvest raises.

HarvestError
├── SourceUnusable   the folder to harvest cannot be read, or holds nothing to harvest
├── NothingToUndo    no harvest of that name stands
└── NotReproducible  the lesson has no stored case that can be run again
"""

from __future__ import annotations

from kb.errors import KbError


class HarvestError(KbError):
    """Base of every error of harvest; the text says what, where and what to do next."""


class SourceUnusable(HarvestError):
    """The folder cannot be harvested; nothing was read into the memory."""


class NothingToUndo(HarvestError):
    """No harvest of that name stands; the text names those that do."""


class NotReproducible(HarvestError):
    """The lesson carries no failing and fixed case to run again."""
