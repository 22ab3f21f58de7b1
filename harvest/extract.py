"""Every source of a folder to drafts: which module reads which kind.

>>> told = extract(read_sources(folder))
>>> len(told.drafts), told.left_out
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harvest.draft import Draft
from harvest.gates import LedgerOutcome, drafts_of_ledger
from harvest.jobs import drafts_of_jobs
from harvest.notes import drafts_of_notes
from harvest.sessions import drafts_of_log, drafts_of_transcript
from harvest.sources import LeftOut, Reading
from harvest.speed import drafts_of_figures
from harvest.tables import drafts_of_registry, drafts_of_tables


@dataclass(frozen=True, slots=True)
class Extracted:
    """What the sources tell, and what was left out."""

    drafts: tuple[Draft, ...]
    outcomes: tuple[LedgerOutcome, ...]
    left_out: tuple[LeftOut, ...]


def extract(reading: Reading, recipes: Path | None = None) -> Extracted:
    """The drafts of everything that was read, in the order of the files. `recipes`: the shipped ones."""
    drafts: list[Draft] = []
    outcomes: list[LedgerOutcome] = []
    left = list(reading.left_out)
    jobs = [source for source in reading.sources if source.kind == "job"]
    for source in reading.sources:
        match source.kind:
            case "ledger":
                told = drafts_of_ledger(source, recipes)
                drafts.extend(told.drafts)
                outcomes.extend(told.outcomes)
                left.extend(told.refused)
            case "document":
                drafts.extend(drafts_of_notes(source))
                drafts.extend(drafts_of_figures(source))
                drafts.extend(drafts_of_tables(source))
            case "registry":
                drafts.extend(drafts_of_registry(source))
            case "transcript":
                drafts.extend(drafts_of_transcript(source))
            case "log":
                drafts.extend(drafts_of_log(source))
            case "job":
                continue
    if jobs:
        drafts.extend(drafts_of_jobs(jobs))
    return Extracted(tuple(drafts), tuple(outcomes), tuple(left))
