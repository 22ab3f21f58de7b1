"""`herdbook deploy`: a model through eight gated phases in a workspace; the agent's moves and the answers of a person."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from mcp_server.output import columns, console, emit, fail

if TYPE_CHECKING:
    from npu_tools.deployment.machine import Machine
    from npu_tools.deployment.state import Question

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]


def register(app: typer.Typer) -> None:
    """Add `deploy` to `app`, and its bench to `herdbook bench`."""
    from mcp_server.bench_deploy import deploy as bench
    from mcp_server.cli_upkeep import bench_app

    app.command()(deploy)
    bench_app.command("deploy")(bench)


def deploy(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A config.json, a folder, a .gguf file, or a published name; nothing goes on with WORKSPACE."
        ),
    ] = None,
    workspace: Annotated[Path, typer.Option("--workspace", "-w", help="The folder of this deployment.")] = Path(),
    phase: Annotated[int | None, typer.Option(min=0, max=7, help="Only this phase, even if it passed before.")] = None,
    until: Annotated[int, typer.Option(min=0, max=7, help="The last phase to run.")] = 7,
    backend: Annotated[
        Literal["emulator", "xrt"] | None, typer.Option(help="Where kernels run.", show_default="emulator")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="A folder of safetensors, a .gguf file, a hub id, or random:SEED.")
    ] = None,
    seq: Annotated[
        int | None, typer.Option(min=1, help="Prompts are padded to this many tokens.", show_default="256")
    ] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Only so many layers of the model.")] = None,
    prompts: Annotated[
        int | None, typer.Option(min=1, max=8, help="Prompts of the token gate.", show_default="8")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, max=32, help="Tokens of the token gate.", show_default="32")
    ] = None,
    convention: Annotated[
        Literal["head", "paper"] | None,
        typer.Option(help="Whose criteria decide: mlir-air's of August 2026, or the paper's.", show_default="head"),
    ] = None,
    checkpoints: Annotated[
        str | None, typer.Option(help="Ask a person after these phases, as 3,5; 'all' for every one.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY.NAME=VALUE", help="A setting, as gemm.tile_m=32; an empty value takes it back."
        ),
    ] = None,
    note: Annotated[str | None, typer.Option(help="Write a note into the ledger.")] = None,
    about: Annotated[int | None, typer.Option(min=1, help="With --note: the failed line it explains.")] = None,
    answer: Annotated[
        str | None, typer.Option(help="Answer the open question: go on, run the phase again, stop.")
    ] = None,
    status: Annotated[bool, typer.Option("--status", help="Only say where the deployment stands.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Take a model through eight gated phases: reference, kernels, block, model, prefill, decode, finalise, evaluator.

    What WORKSPACE was opened with holds from then on: go on, look (--status) or answer with --workspace alone.
    """
    from mcp_server.cli import open_memory
    from mcp_server.config import Config
    from mcp_server.deployments import advisor, agree, machine_of, open_model, ran_answer, registrar, status_answer

    told = _Told(quiet=as_json)
    machine = machine_of(
        Config.from_environment(), workspace.absolute(), advise=advisor(open_memory), teller=told,
        ask=None if as_json or not sys.stdin.isatty() else _ask, register=registrar(open_memory),
    )  # fmt: skip
    given = {
        "seq_len": seq, "backend": backend, "convention": convention, "layers": layers, "prompts": prompts, "steps": steps,
        "checkpoints": _numbers(checkpoints, as_json) if checkpoints is not None else None,
    }  # fmt: skip
    asked = {name: value for name, value in given.items() if value is not None}
    if model is not None and not status:
        open_model(machine, model, weights, _absolute, asked)
    else:
        agree(machine, model, weights, _absolute, asked)
    _moves(machine, settings, note, about, answer, as_json)
    if status or ((settings or note) and model is None and phase is None):
        found = {**status_answer(machine), "at_work": machine.workspace.at_work()}
        if not emit(found, as_json):
            _show_status(found)
            if found["at_work"]:
                console.print(f"{found['at_work']} is at work on it: what says interrupted is being run")
        return
    ran = machine.run(first=phase, last=phase if phase is not None else until)
    data = {**ran_answer(ran), "deployment": status_answer(machine)}
    if not emit(data, as_json):
        _show_status(data["deployment"])
        _show_end(data)
    sys.exit(0 if data["ok"] else 1)


class _Told:
    """Progress on the error stream of a terminal."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet or not sys.stderr.isatty()
        self._last = ""

    def cancelled(self) -> bool:
        """Ctrl-C ends it; the ledger keeps what was done."""
        return False

    def progress(self, done: float, total: float, note: str = "") -> None:
        """Say a new step once."""
        if not self._quiet and note and note != self._last:
            self._last = note
            print(f"  {done:.0f}/{total:.0f} {note}", file=sys.stderr)


def _absolute(given: str) -> Path:
    return Path(given).expanduser().absolute()


def _moves(
    machine: Machine, settings: list[str] | None, note: str | None, about: int | None, answer: str | None, as_json: bool
) -> None:
    for given in settings or []:
        path, sign, value = given.partition("=")
        key, dot, name = path.rpartition(".")
        if not sign or not dot:
            fail(f"--set {given[:80]!r}: write KEY.NAME=VALUE, as in gemm.tile_m=32", as_json=as_json)
        machine.set(key, {name: _value(value)}, by="person")
    if note is not None:
        machine.note(note, about=about, by="person")
    if answer is not None:
        machine.answer(answer)


def _value(text: str) -> Any:
    """A setting's value: a number, true or false, else the text; empty takes it back."""
    if not text:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, int | float | bool | str) else text


def _numbers(text: str, as_json: bool) -> tuple[int, ...]:
    if text == "all":
        return tuple(range(8))
    try:
        return tuple(int(each) for each in text.split(","))
    except ValueError:
        fail(f"--checkpoints {text!r}: write phases, as in 3,5", as_json=as_json)


def _ask(question: Question) -> str | None:
    """Put a checkpoint's question to the person at the terminal."""
    console.print(f"[bold]{escape(question.question)}[/]")
    for number, option in enumerate(question.options, 1):
        console.print(f"  {number} {escape(option)}")
    said = console.input("> ").strip()
    if said.isdecimal() and 1 <= int(said) <= len(question.options):
        return question.options[int(said) - 1]
    return said if said in question.options else None


def _show_status(found: dict[str, Any]) -> None:
    opened = found["opened"]
    console.print(
        f"[bold]{escape(str(found['model']))}[/] in {escape(found['workspace'])}: weights {escape(str(opened['weights']))}, "
        f"{opened['layers']} layers, prompts padded to {opened['seq_len']}, {opened['prompts']} × {opened['steps']} tokens, "
        f"{opened['backend']}, convention {opened['convention']}"
    )
    table = columns("phase", "", "status", "outcome")
    for each in found["phases"]:
        style = {"passed": "green", "failed": "red", "interrupted": "yellow"}.get(each["status"], "dim")
        table.add_row(str(each["number"]), each["name"], f"[{style}]{each['status']}[/]", escape(each["summary"]))
    console.print(table)
    if found["steps"]:
        table = columns("phase", "step", "before ms", "after ms", "timing", "kept", "why")
        for step in found["steps"]:
            after = "–" if step["after_us"] is None else f"{step['after_us'] / 1e3:.3f}"
            table.add_row(
                str(step["phase"]), step["name"], f"{step['before_us'] / 1e3:.3f}", after, step["timing"],
                "yes" if step["kept"] else "no", escape(step["why"]),
            )  # fmt: skip
        console.print(table)
    console.print(
        f"ledger: {found['ledger_lines']} lines, head {found['ledger_head']} [dim](kept elsewhere, 'herdbook evaluate DIR "
        "--head HASH' tells whether it was written anew)[/]",
        soft_wrap=True,
    )


def _show_end(data: dict[str, Any]) -> None:
    for failure in data["failures"][:5]:
        diagnosis: dict[str, Any] = failure["diagnosis"] or {}
        console.print(f"[red]line {failure['line']}, {failure['gate']}:[/] {escape(str(diagnosis.get('message')))}")
        if diagnosis.get("remedy"):
            console.print(f"  remedy: {escape(diagnosis['remedy'])}")
        for text in failure["fixed_when"]:
            console.print(f"  fixed when: {escape(text)}")
        for lesson in failure["lessons"]:
            console.print(f"  lesson {lesson['id']} ({lesson['confidence']:.2f}): {escape(lesson['title'])}")
        console.print(f"  skills: {', '.join(failure['skills'])}")
    for warning in data["warnings"]:
        console.print(f"[yellow]note:[/] {escape(warning)}")
    if data["question"] is not None:
        console.print(
            f"[bold]{escape(data['question']['question'])}[/] --answer {', '.join(data['question']['options'])}"
        )
    console.print(f"{data['state']}: {escape(data['summary'])}")
