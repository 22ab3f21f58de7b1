"""What can go wrong in the memory, as one tree.

KbError
├── RecordInvalid     a record's fields break the schema
├── FileInvalid       a record file is not front matter plus sections
├── NotFound          no record has that id
├── StoreUnavailable  the user database cannot be opened, read or written
├── ImportRefused     an archive or folder offered for import is unsafe or unreadable
└── WeightsMissing    the embedding weights are absent or fail their digest
"""


class KbError(Exception):
    """Base of every error the memory raises; the text says what, where and what to do next."""


class RecordInvalid(KbError):
    """The record breaks the schema; the text names the field and what it takes."""


class FileInvalid(KbError):
    """The file is not a Herdbook record file; the text names the file and the line."""


class NotFound(KbError):
    """No record has that id; the text names the nearest ids."""


class StoreUnavailable(KbError):
    """The user database cannot be used; the text says why and that nothing was lost."""


class ImportRefused(KbError):
    """The archive or folder was not imported; nothing was written."""


class WeightsMissing(KbError):
    """No usable embedding weights; search goes on without its dense half."""
