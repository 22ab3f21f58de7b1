"""What a deployment is, told by its ledger alone: which phases passed, which settings hold, what is still open.

>>> state = State.of(ledger.entries())
>>> state.next_phase()
2
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, cast

from npu_tools.deployment.criteria import phases
from npu_tools.deployment.ledger import Entry, plain

Status = Literal["waiting", "ready", "interrupted", "failed", "passed"]
STEPS = ("merge", "buffer_reuse", "layout")
"""The optimisations a machine tries, in order: what runs together first, since it changes which buffers there are."""


@dataclass(frozen=True, slots=True)
class Question:
    """A checkpoint: what a person was asked, and what they answered."""

    seq: int
    phase: int
    question: str
    options: tuple[str, ...]
    answer: str | None = None


@dataclass(slots=True)
class State:
    """A deployment so far. `settings` maps "gemm", "gemm 64x128x128" or "prefill/q" to settings; `kept` which steps hold."""

    opened: Entry | None = None
    ledger_length: int = 0
    ledger_head: str = ""
    """Hash of the last line: kept elsewhere, it tells whether the ledger was written anew."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    recipes: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    kept: dict[int, dict[str, bool]] = field(default_factory=dict[int, dict[str, bool]])
    steps: list[Entry] = field(default_factory=list[Entry])
    attempts: list[Entry] = field(default_factory=list[Entry])
    decisions: list[Entry] = field(default_factory=list[Entry])
    notes: list[Entry] = field(default_factory=list[Entry])
    questions: list[Question] = field(default_factory=list[Question])
    _last: dict[int, Entry] = field(default_factory=dict[int, Entry])
    _started: dict[int, int] = field(default_factory=dict[int, int])

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> State:
        """The state these lines give."""
        state = cls()
        for entry in entries:
            state._take(entry)
        return state

    @property
    def head(self) -> Mapping[str, Any]:
        """What the deployment was opened with; empty before."""
        return self.opened.body if self.opened else {}

    def contradicted(self, asked: Mapping[str, Any]) -> str:
        """What is asked and was opened otherwise, in words; nothing where all agrees."""
        told = [
            "another config"
            if name == "config_digest"
            else f"{name} {_shown(value)} (it has {_shown(self.head.get(name))})"
            for name, value in asked.items()
            if plain(value) != self.head.get(name)
        ]
        passed = [str(each.number) for each in phases() if self.status(each.number) == "passed"]
        stand = f"phases {', '.join(passed)} passed" if passed else "no phase has passed"
        return f"the deployment of {self.head.get('model')} ({stand}) contradicts {', '.join(told)}" if told else ""

    def status(self, number: int) -> Status:
        """How a phase stands."""
        last = self._last.get(number)
        said = str(last.body.get("state")) if last else "reopened"
        if said == "passed":
            return "passed"
        if said == "started":
            return "interrupted"
        needs = next(phase.needs for phase in phases() if phase.number == number)
        if said == "failed":
            return "failed"
        return "ready" if all(self.status(each) == "passed" for each in needs) else "waiting"

    def next_phase(self) -> int | None:
        """The first phase that has not passed; None when all have."""
        return next((phase.number for phase in phases() if self.status(phase.number) != "passed"), None)

    def summary(self, number: int) -> str:
        """What the phase's last line said."""
        last = self._last.get(number)
        return str(last.body.get("summary", "")) if last else ""

    def since(self, number: int) -> int:
        """Number of the line a phase began anew with; lines of an interrupted run count on."""
        return self._started.get(number, 0)

    def attempts_of(self, number: int, *, since: int | None = None) -> list[Entry]:
        """Attempts of a phase, by default of its present run."""
        first = self.since(number) if since is None else since
        return [entry for entry in self.attempts if entry.phase == number and entry.seq >= first]

    def failures(self) -> list[Entry]:
        """Attempts that failed and decide, all of them."""
        return [entry for entry in self.attempts if not entry.body.get("passed")]

    def open_questions(self) -> list[Question]:
        """Those nobody answered."""
        return [question for question in self.questions if question.answer is None]

    def unexplained(self) -> list[Entry]:
        """Failures of phases that passed since, of what the machine did not try by itself, that no note is about."""
        explained = {int(entry.body["about"]) for entry in self.notes if isinstance(entry.body.get("about"), int)}
        return [
            entry
            for entry in self.failures()
            if entry.phase is not None
            and not entry.body.get("trial")
            and self.status(entry.phase) == "passed"
            and entry.seq not in explained
        ]

    def _take(self, entry: Entry) -> None:
        self.ledger_length, self.ledger_head = entry.seq, entry.hash
        body = entry.body
        match entry.kind:
            case "opened":
                self._open(entry)
            case "phase":
                self._phase(entry)
            case "attempt":
                self.attempts.append(entry)
            case "decision":
                self.decisions.append(entry)
                self._decide(body)
            case "step":
                self.steps.append(entry)
                if entry.phase is not None:
                    self.kept.setdefault(entry.phase, {})[str(body.get("name"))] = bool(body.get("kept"))
            case "checkpoint":
                options = tuple(str(each) for each in body.get("options") or ())
                self.questions.append(Question(entry.seq, entry.phase or 0, str(body.get("question")), options))
            case "answer":
                self._answer(body)
            case _:
                self.notes.append(entry)

    def _open(self, entry: Entry) -> None:
        """A new opening starts over: only a deployment in which nothing has passed can be opened again."""
        self.opened = entry
        self._last.clear()
        self._started.clear()

    def _phase(self, entry: Entry) -> None:
        number = entry.phase if entry.phase is not None else 0
        if entry.body.get("state") == "started" and self.status(number) != "interrupted":
            self._started[number] = entry.seq
        self._last[number] = entry
        if entry.body.get("state") == "reopened":
            self.kept.pop(number, None)

    def _decide(self, body: Mapping[str, Any]) -> None:
        subject, key, after = str(body.get("subject")), str(body.get("key")), body.get("after")
        if subject == "setting":
            kernel, _, name = key.rpartition(".")
            chosen = self.settings.setdefault(kernel, {})
            if after is None:
                chosen.pop(name, None)
            else:
                chosen[name] = after
            if not chosen:
                del self.settings[kernel]
        if subject == "recipe":
            kernel, _, name = key.partition("/")
            if after is None:
                self.recipes.get(kernel, {}).pop(name, None)
            else:
                self.recipes.setdefault(kernel, {})[name] = str(after)
            if not self.recipes.get(kernel):
                self.recipes.pop(kernel, None)

    def _answer(self, body: Mapping[str, Any]) -> None:
        about = body.get("checkpoint")
        self.questions = [
            Question(q.seq, q.phase, q.question, q.options, str(body.get("answer"))) if q.seq == about else q
            for q in self.questions
        ]


def _shown(value: Any) -> str:
    return "none" if value in (None, [], ()) else str(value)[:200]


def setting_for(settings: Mapping[str, Mapping[str, Any]], kernel: str, extents: str, step: str) -> dict[str, Any]:
    """The settings chosen for a kernel, for it at a shape, or for one step of the plan ("prefill/q"): later ones win."""
    chosen: dict[str, Any] = {}
    for key in (kernel, f"{kernel} {extents}", step):
        chosen |= settings.get(key, {})
    return chosen


def as_settings(raw: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """settings.json as it is in memory."""
    return {str(k): dict(cast("Mapping[str, Any]", v)) for k, v in raw.items() if isinstance(v, Mapping)}


def tools_version() -> str:
    """The version of the tools, as a deployment's opening line has it; "0+source" where they are not installed."""
    try:
        return version("herdbook")
    except PackageNotFoundError:
        return "0+source"
