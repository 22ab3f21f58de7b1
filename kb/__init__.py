"""Herdbook's memory: failures with causes and fixes, kernel notes, measured rows, trajectories.

from kb import MemoryConfig, open_memory

memory = open_memory(MemoryConfig(corpus=…, compiled=…, home=…, weights=(…,)))
answer = memory.explain(open("build.log").read())
print("no known match" if answer.no_match else answer.hits[0].record.fix)
"""

from kb.errors import KbError
from kb.files import dump_record, parse_record
from kb.filters import Filters
from kb.memory import Answer, Contributed, Hit, Memory, MemoryConfig, open_memory
from kb.records import Lesson, Record

__all__ = [
    "Answer", "Contributed", "Filters", "Hit", "KbError", "Lesson", "Memory", "MemoryConfig", "Record",
    "dump_record", "open_memory", "parse_record",
]  # fmt: skip
