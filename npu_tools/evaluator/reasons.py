"""What an evaluation can say: one code a kind of finding, with what it means and how heavily it weighs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]
Result = Literal["pass", "pass_with_warnings", "fail"]

CODES: dict[str, tuple[Severity, str]] = {
    # the record
    "chain_broken": ("error", "the ledger is not what was written line by line"),
    "config_changed": ("error", "the config is not the one the deployment was opened with"),
    "unsupported": ("error", "the config is of an architecture that cannot run here"),
    "incomplete": ("error", "a phase did not pass, or passed before the phases it needs"),
    "history_removed": ("error", "an attempt that was made is not in the ledger any more"),
    "head_differs": ("error", "the ledger is not the one whose last hash was kept elsewhere"),
    "verdict_foreign": (
        "error",
        "the verdict lying there is of another ledger, or of this one before lines were removed",
    ),
    "clock_ahead": ("error", "a line carries a time that has not come yet"),
    "clock_backwards": ("warning", "a line is older than the one before it"),
    # the gates
    "criteria_missing": ("error", "a phase passed without showing what it must show"),
    "criteria_changed": ("error", "a criterion was held against another bound than the shipped one"),
    "criteria_inconsistent": ("error", "a criterion or attempt is marked passed though its own figures say otherwise"),
    "convention_swapped": ("error", "a gate was judged by another convention than the deployment's"),
    "tolerance_loosened": ("error", "a kernel was judged by another tolerance than its own"),
    "prompts_changed": ("error", "the token gate saw other prompts than every deployment is gated with"),
    "gate_shrunk": ("error", "the token gate saw fewer prompts or steps than it must"),
    "gate_small": ("warning", "the deployment was opened with a smaller gate than upstream's"),
    "model_cut": ("warning", "the deployment was opened for fewer layers than the model has"),
    "layers_skipped": ("error", "fewer layers were run than the model has"),
    "sequence_shortened": ("error", "gates ran at another length than the deployment claims"),
    "kernel_ungated": ("error", "a kernel of the model was never gated at the shape and settings it runs with"),
    # what was kept
    "results_missing": ("error", "a file that a gate names, or that every deployment leaves, is not there"),
    "results_changed": ("error", "a file of results is not the one its gate saw"),
    "results_unknown": ("warning", "files of results that no gate names"),
    "results_contradict": ("error", "figures in the ledger do not follow from the files they were taken from"),
    "stale": ("error", "something changed after the gate that vouches for it"),
    # recipes
    "reference_edited": ("error", "the reference a gate judged by is not the shipped or re-derived one"),
    "inputs_weakened": ("error", "a recipe changes the trial inputs its kernel is judged on"),
    "recipe_reaches_out": ("error", "recipe code touches files, the environment or the interpreter"),
    "recipe_embeds_data": ("error", "recipe code carries data instead of computing"),
    "host_computes": ("error", "the host's part of a recipe computes, or remembers, instead of moving data"),
    "verify_only": ("error", "a kernel behaves otherwise than it did when it was verified"),
    "shape_special_case": ("warning", "a recipe singles out one size"),
    "recipe_hidden": ("error", "the merged recipes kept in results are not what the workspace's recipes give"),
    # what was re-derived
    "kernel_fails": ("error", "a kernel misses its own gate on fresh inputs"),
    "copied_reference": ("error", "outputs that are the reference, which no kernel here computes"),
    "not_aie_numerics": ("error", "outputs without the rounding of the device"),
    "wrong_weights": ("error", "results come from other weights than the deployment names"),
    "not_reproduced": ("error", "running the deployment again gives other results"),
    "nondeterministic": ("error", "two runs on the same inputs differ"),
    "model_fails": ("error", "the deployed path misses the reference on fresh prompts"),
    # times
    "timing_wrong": ("error", "a time is not what the cost model gives for the claimed shape and settings"),
    "timing_subset": ("error", "a time covers less than the model"),
    "measured_on_emulator": ("error", "a time is called measured, and no device ran"),
    # papers
    "settings_differ": ("warning", "settings.json is not what the ledger decided; the ledger holds"),
    "document_missing": ("warning", "a document written from the ledger is not there; the ledger holds"),
    "model_drifts": (
        "warning",
        "the deployed path is near the reference on fresh prompts, and not as near as gates ask",
    ),
    "failure_unexplained": ("warning", "a gate failed and later passed, and no note says what fixed it"),
    "other_version": ("warning", "gates were judged by another version of the tools"),
    "not_checked": ("warning", "something could not be checked here"),
}


@dataclass(frozen=True, slots=True)
class Reason:
    """One finding: its code, a sentence, and where to look (ledger lines, files, figures)."""

    code: str
    text: str
    evidence: str

    def __post_init__(self) -> None:
        assert self.code in CODES, self.code

    @property
    def severity(self) -> Severity:
        """How heavily it weighs."""
        return CODES[self.code][0]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**asdict(self), "severity": self.severity}


def verdict_of(reasons: Iterable[Reason]) -> Result:
    """fail with an error among them, pass_with_warnings with a warning, else pass."""
    kinds = {reason.severity for reason in reasons}
    return "fail" if "error" in kinds else "pass_with_warnings" if "warning" in kinds else "pass"
