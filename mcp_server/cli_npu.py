"""The commands over npu_tools: device, check, compile, run, gate, job, predict, kernel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from mcp_server import cli_device, cli_kernels
from mcp_server.cli_upkeep import bench_app
from mcp_server.npu_replies import findings_in
from mcp_server.output import columns, console, emit, fail

if TYPE_CHECKING:
    from mcp_server.places import Places

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
DeviceOption = Annotated[str, typer.Option(help="npu2 (Strix, Krackan …) or npu1 (Phoenix).")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting, as tile_m=64; repeatable.")
]
FileArgument = Annotated[Path, typer.Argument(help="An AIR program (.mlir).")]
FunctionOption = Annotated[str | None, typer.Option("--func", help="Which function, where there are several.")]
BackendOption = Annotated[
    Literal["emulator", "xrt"],
    typer.Option(help="Where: the emulator, or an NPU by mlir-air and XRT (docs/first-hour.md)."),
]
CompileOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="With --backend xrt: an option of XRTBackend; repeatable."),
]
SeqOption = Annotated[int, typer.Option(min=1, help="Prompt length in tokens.")]

kernel_app = typer.Typer(help="Kernels: recipes, measured rows, legal tile configurations.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (device, check, compile, run, gate, job, predict):
        app.command()(command)
    cli_kernels.register(kernel_app)
    cli_device.register(kernel_app, bench_app)
    app.add_typer(kernel_app, name="kernel")


def device(
    name: Annotated[str | None, typer.Argument(help="npu1, npu2 or a product name; all without.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """What the devices allow: every limit with its unit, kind, source and status."""
    from dataclasses import asdict

    from npu_tools.device import device as find
    from npu_tools.device import devices

    chosen = (find(name),) if name else devices()
    data = {
        each.name: {
            "title": each.title, "architecture": each.architecture, "names": each.names, "pci_ids": each.pci_ids,
            "source": each.source, "limits": [asdict(limit) for limit in each.limits.values()],
        }
        for each in chosen
    }  # fmt: skip
    if emit({"devices": data}, as_json):
        return
    for each in chosen:
        console.print(f"[bold]{each.name}[/] {escape(each.title)}")
        table = columns("limit", "value", "unit", "kind", "status", "source")
        for limit in each.limits.values():
            said = "; ".join(f"{claim.value} in {claim.source}" for claim in limit.alternatives)
            source = limit.source + (f" (disputed: {said})" if said else "")
            table.add_row(limit.name, str(limit.value), limit.unit, limit.kind, limit.status, escape(source))
        console.print(table)


def check(
    file: Annotated[Path | None, typer.Argument(help="An AIR program (.mlir).")] = None,
    kernel: Annotated[str | None, typer.Option(help="A kernel instead: gemm, gemv, rope, flash_attention …")] = None,
    shape: Annotated[str | None, typer.Option(help="With --kernel: MxKxN, MxK …")] = None,
    settings: SetOption = None,
    model: Annotated[Path | None, typer.Option(help="A whole model instead: its Hugging Face config.json.")] = None,
    seq: SeqOption = 2048,
    device: DeviceOption = "npu2",
    as_json: JsonFlag = False,
) -> None:
    """What the device or its compiler would refuse, before a three-minute compile; with limits, sources and remedies."""
    from mcp_server import npu

    if sum(value is not None for value in (file, kernel, model)) != 1:
        fail("give one of: FILE.mlir, --kernel NAME --shape …, --model CONFIG.json", as_json=as_json)
    if kernel is not None:
        if shape is None:
            fail("--kernel needs --shape, as in --shape 2048x2048x8192", as_json=as_json)
        answer = npu.kernel_answer(kernel, shape, _pairs(settings, as_json), device)
    elif model is not None:
        answer = npu.model_answer(_places(), str(model), seq, device)
    else:
        from npu_tools.jobs.work import check as check_program
        from npu_tools.requests import CheckRequest

        assert file is not None
        answer = check_program(CheckRequest.model_validate({"program": _source(file), "device": device}))
    if not emit(answer, as_json):
        _show_findings(answer["findings"])
        _show_facts({k: v for k, v in answer.items() if k not in ("findings", "parsed", "ok")})
        console.print("[green]nothing refuses it[/]" if answer["ok"] else "[red]refused[/]")
    sys.exit(0 if answer["ok"] else 1)


def compile(
    file: FileArgument,
    function: FunctionOption = None,
    device: DeviceOption = "npu2",
    backend: BackendOption = "emulator",
    options: CompileOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Parse, verify, check and lower a program for the emulator, or compile it for an NPU; the artefact is cached by content."""
    places = _places()
    request = {
        "program": _source(file), "cache": str(places.artefacts), "device": device, "function": function,
        **_device_request(places, backend, options, as_json),
    }  # fmt: skip
    answer = _perform("compile", request, as_json)
    answer["lessons"] = _lessons(answer["findings"], device)
    if not emit(answer, as_json):
        _show_findings(answer["findings"])
        _show_lessons(answer["lessons"])
        _show_facts({k: v for k, v in answer.items() if k not in ("findings", "lessons", "ok", "arguments", "plan")})
        console.print("[green]compiled[/]" if answer["ok"] else "[red]refused[/]")
    sys.exit(0 if answer["ok"] else 1)


def run(
    file: FileArgument,
    function: FunctionOption = None,
    inputs: Annotated[Path | None, typer.Option(help=".npz or .safetensors with arg0 … argN.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Without --inputs: seeded random ones.")] = 0,
    outputs: Annotated[Path, typer.Option(help="Where the arguments' final contents go (.npz, .safetensors).")] = Path(
        "out.npz"
    ),
    numerics: Annotated[
        Literal["faithful", "f32"], typer.Option(help="The device's rounding, or plain f32.")
    ] = "faithful",
    grouping: Annotated[
        Literal["lifted", "per-tile"], typer.Option(help="All tiles at once, or one by one.")
    ] = "lifted",
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds the run may take.")] = 600,
    memory_mb: Annotated[float, typer.Option(min=0.001, help="Bound on live buffers.")] = 8000,
    timeline: Annotated[
        Path | None, typer.Option(help="Draw when each tile and channel was busy (.svg, .png).")
    ] = None,
    tile_map: Annotated[Path | None, typer.Option(help="Draw L1 and L2 use by tile (.svg, .png).")] = None,
    rounding: Annotated[bool, typer.Option(help="Report where values were rounded, and by how much.")] = False,
    background: Annotated[bool, typer.Option(help="Start a job, print its id and return.")] = False,
    device: DeviceOption = "npu2",
    backend: BackendOption = "emulator",
    options: CompileOption = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="With --backend xrt: measure it too, 5 warm-ups and 20 timed runs.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run a program, by default on the emulator: AIE2P numerics, deadlocks and stray reads explained, times modelled."""
    request = {
        "program": _source(file), "function": function, "inputs": str(inputs.absolute()) if inputs else None, "seed": seed,
        "outputs": str(outputs.absolute()), "numerics": numerics, "grouping": grouping, "timeout_s": timeout,
        "memory_mb": memory_mb, "timeline": str(timeline.absolute()) if timeline else None,
        "tile_map": str(tile_map.absolute()) if tile_map else None, "rounding": rounding, "device": device,
        "profile": profile,
    }  # fmt: skip
    places = _places()
    device_request = _device_request(places, backend, options, as_json)
    if device_request:
        request |= {"cache": str(places.artefacts), **device_request}
    elif profile:
        fail("--profile is for --backend xrt: the emulator's time is modelled", as_json=as_json)
    if background:
        from npu_tools.jobs import Jobs

        started = Jobs(_places().jobs).start("run", request)
        if not emit({"job": started}, as_json):
            console.print(f"{started}; 'herdbook job {started} --wait' waits for it")
        return
    answer = _perform("run", request, as_json)
    answer["lessons"] = _lessons(answer["diagnostics"], None)
    if not emit(answer, as_json):
        _show_findings(answer["diagnostics"])
        _show_lessons(answer["lessons"])
        _show_facts({k: v for k, v in answer.items() if k not in ("diagnostics", "lessons", "counters", "ok")})
        _show_facts(answer["counters"])
        console.print("[green]ran to the end[/]" if answer["ok"] else "[red]failed[/]")
    sys.exit(0 if answer["ok"] else 1)


def gate(
    actual: Annotated[str, typer.Option(help="The output: .npy, or .npz#arg2.")],
    reference: Annotated[str, typer.Option(help="The FP32 reference, the same shape.")],
    kernel: Annotated[str | None, typer.Option(help="Whose tolerance to use.")] = None,
    tier: Annotated[str | None, typer.Option(help="gemm: high, low or f32.")] = None,
    convention: Annotated[
        Literal["upstream", "paper", "tokens"], typer.Option(help="By which rule to judge.")
    ] = "upstream",
    rtol: Annotated[float | None, typer.Option(min=0)] = None,
    atol: Annotated[float | None, typer.Option(min=0)] = None,
    previous: Annotated[str | None, typer.Option(help="An earlier call's output, to spot stale buffers.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Whether every element is within tolerance of the reference; where the worst is, what the error looks like."""
    from mcp_server.npu import gate_answer

    verdict = gate_answer(_places(), actual, reference, kernel, tier, convention, rtol, atol, previous)
    if not emit(verdict, as_json):
        colour, word = ("green", "passed") if verdict["passed"] else ("red", "missed")
        console.print(f"[{colour}]{word}[/] ({verdict['convention']}): {escape(verdict['reason'])}")
        for likeness in verdict.get("looks_like", []):
            console.print(
                f"looks like [bold]{likeness['kind']}[/]: {escape(likeness['evidence'])}; look at {escape(likeness['look_at'])}"
            )
        _show_facts(verdict.get("metrics") or {})
    sys.exit(0 if verdict["passed"] else 1)


def job(
    id: Annotated[str | None, typer.Argument(help="A job id; without, the latest jobs.")] = None,
    wait: Annotated[bool, typer.Option(help="Wait until it ends.")] = False,
    cancel: Annotated[bool, typer.Option(help="Stop it.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Jobs on disk: their state, result, end. They outlive the process that started them."""
    from npu_tools.jobs import ENDED, Jobs

    jobs = Jobs(_places().jobs)
    if id is None:
        views = jobs.listed(20)
        if not emit({"jobs": [view.model_dump() for view in views]}, as_json):
            table = columns("id", "state", "wall s", "reason")
            for view in views:
                table.add_row(view.id, view.state, f"{view.wall_s:.1f}", escape(view.reason[:80]))
            console.print(table if views else "no jobs yet")
        return
    view = jobs.cancel(id) if cancel else jobs.view(id)
    while wait and view.state not in ENDED:
        view = jobs.wait(id)
    if not emit(view.model_dump(), as_json):
        _show_facts(view.model_dump(exclude={"result", "output_tail"} if view.state == "done" else {"result"}))
        result = view.result or {}
        _show_findings(findings_in(result))
        _show_facts({k: v for k, v in result.items() if k not in ("findings", "diagnostics", "counters")})
    good = view.state not in ("failed", "cancelled") and (view.result or {}).get("ok", True)
    sys.exit(0 if good or cancel else 1)


def predict(
    kernel: Annotated[str | None, typer.Option(help="gemm, gemv, rmsnorm, rope, silu_mul, flash_attention …")] = None,
    shape: Annotated[str | None, typer.Option(help="With --kernel: MxKxN, MxK …")] = None,
    settings: SetOption = None,
    model: Annotated[Path | None, typer.Option(help="A whole model: its Hugging Face config.json.")] = None,
    seq: SeqOption = 2048,
    context: Annotated[int, typer.Option(min=1, help="With --model: tokens in the cache while decoding.")] = 64,
    device: DeviceOption = "npu2",
    as_json: JsonFlag = False,
) -> None:
    """Modelled time, from a fit to published measurements, with its uncertainty. Never a measurement."""
    from npu_tools.check.model import check_model
    from npu_tools.estimate import estimate_kernel, estimate_model

    if (kernel is None) == (model is None):
        fail("give one of: --kernel NAME --shape …, --model CONFIG.json", as_json=as_json)
    if kernel is not None:
        if shape is None:
            fail("--kernel needs --shape, as in --shape 2048x2048x8192", as_json=as_json)
        answer = estimate_kernel(kernel, shape, _pairs(settings, as_json), device).as_dict()
    else:
        from mcp_server.npu import read_config

        config = read_config(_places(), str(model))
        found = estimate_model(config, seq, context)
        if not hasattr(found, "tokens_per_s"):
            refused = found.as_dict()
            if not emit({"findings": [refused]}, as_json):
                _show_findings([refused])
            sys.exit(1)
        answer = found.as_dict()
        answer["low"] = {"ttft_s": answer["ttft_low_s"], "tokens_per_s": answer["tokens_low"]}
        answer["high"] = {"ttft_s": answer["ttft_high_s"], "tokens_per_s": answer["tokens_high"]}
        findings = check_model(config, seq, device).findings
        answer["findings"] = [one.as_dict() for one in findings if one.severity == "error"]
    refused = answer.pop("findings", [])
    if not emit({**answer, "findings": refused}, as_json):
        _show_facts(answer)
        _show_findings(refused)
        if refused:
            console.print("[bold red]a model that check refuses: the time is that of a sound one of its size[/]")
    if refused:
        sys.exit(1)


@kernel_app.command("tune")
def tune_command(
    kernel: Annotated[str, typer.Argument(help="gemm, gemv, rmsnorm …")],
    shape: Annotated[str, typer.Argument(help="MxKxN, MxK …")],
    settings: SetOption = None,
    device: DeviceOption = "npu2",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Configurations to show.")] = 10,
    as_json: JsonFlag = False,
) -> None:
    """Legal tile configurations of a kernel for a shape, fastest by the cost model first."""
    from npu_tools.estimate import tune_kernel

    tuned = tune_kernel(kernel, shape, _pairs(settings, as_json), device, limit)
    rows = [{"settings": dict(each.settings), **each.prediction.as_dict()} for each in tuned.ranked]
    found = {"kernel": kernel, "shape": shape, "label": "modelled", "tried": tuned.tried, "refused": tuned.refused}
    if emit({**found, "configurations": rows}, as_json):
        sys.exit(0 if rows else 1)
    table = columns("modelled µs", "low", "high", "settings")
    for row in rows:
        words = " ".join(f"{name}={value}" for name, value in row["settings"].items())
        table.add_row(f"{row['modelled_us']:.1f}", f"{row['low']:.1f}", f"{row['high']:.1f}", escape(words))
    console.print(
        table if rows else "no legal configuration was found; 'herdbook check --kernel' says why one is refused"
    )
    sys.exit(0 if rows else 1)


@kernel_app.command("fit")
def fit_command(
    write: Annotated[bool, typer.Option("--write", help="Keep it as the fit that predictions use.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Fit the cost model to the corpus's measured rows; says how far it is from the one in use, writes it when asked."""
    from mcp_server.cli_bench import cost_report
    from mcp_server.config import package_folder

    fitted = cost_report().fitted
    path = package_folder("npu_tools") / "cost" / "fitted.json"
    same = path.read_text(encoding="utf-8") == fitted.as_json()
    if write and not same:
        try:
            path.write_text(fitted.as_json(), encoding="utf-8")
        except OSError as error:
            fail(f"{path} cannot be written: {error.strerror or error}", as_json=as_json)
    kernels: dict[str, Any] = {name: one["params"] for name, one in fitted.as_dict()["kernels"].items()}
    data = {"digest": fitted.digest, "same": same, "written": write and not same, "kernels": kernels}
    if not emit(data, as_json):
        for name, params in kernels.items():
            console.print(f"{name}: {params}", markup=False)
        told = (
            "the same as the fit in use" if same else "written" if write else "differs from the fit in use; add --write"
        )
        console.print(f"fit {fitted.digest}: {told}", markup=False)


def _device_request(places: Places, backend: str, options: list[str] | None, as_json: bool) -> dict[str, Any]:
    """What the xrt backend is asked besides; nothing for the emulator, which takes no options of a compiler."""
    if backend == "emulator":
        if options:
            fail("--option is for --backend xrt", as_json=as_json)
        return {}
    given = {name: _listed(value) for name, value in _pairs(options, as_json).items()}
    return {"backend": backend, "options": given, "toolchain": dict(places.toolchain)}


def _listed(value: Any) -> Any:
    """runtime_loop_tiling_sizes=4,4 is a list; so is one number there, and text stays text."""
    if isinstance(value, str) and "," in value:
        return [_value(part) for part in value.split(",")]
    return value


def _perform(kind: str, request: dict[str, Any], as_json: bool) -> dict[str, Any]:
    from npu_tools.errors import RunStopped
    from npu_tools.jobs.work import perform

    try:
        with _Teller(not as_json) as teller:
            return perform(kind, request, teller)
    except RunStopped as stop:
        fail(str(stop), as_json=as_json)


class _Teller:
    """A progress bar on a terminal."""

    folder: Path = Path()

    def __init__(self, shown: bool) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True), transient=True, disable=not (shown and sys.stderr.isatty()))
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> _Teller:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def cancelled(self) -> bool:
        """Ctrl-C ends the command by itself."""
        return False

    def progress(self, done: float, total: float, note: str = "") -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=done, total=total or None, description=escape(note))


def _source(file: Path) -> dict[str, str]:
    from mcp_server.places import read_program

    return {"text": read_program(file), "name": str(file)}


def _places() -> Places:
    from mcp_server.config import Config
    from mcp_server.places import Places

    config = Config.from_environment()
    return Places(config.home, Path.cwd(), toolchain=config.toolchain)


def _pairs(given: list[str] | None, as_json: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in given or []:
        name, sign, value = item.partition("=")
        if not (sign and name and value):
            fail(f"{item!r}: write NAME=VALUE, as in tile_m=64", as_json=as_json)
        found[name.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _lessons(found: list[dict[str, Any]], device: str | None) -> list[dict[str, Any]]:
    """The memory's lessons for the errors; none where it cannot be opened, since the findings stand without."""
    if not any(finding["severity"] == "error" for finding in found):
        return []
    from kb import KbError
    from mcp_server.cli import open_memory
    from mcp_server.npu_replies import lessons_for

    try:
        return [lesson.model_dump() for lesson in lessons_for(found, open_memory(), device)]
    except KbError:
        return []


def _show_findings(found: list[dict[str, Any]]) -> None:
    colours = {"error": "red", "warning": "yellow", "note": "dim"}
    for finding in found:
        place = f"{finding['line']}:{finding['column']}: " if finding.get("line") else ""
        mark = "" if finding.get("certain", True) else " (rule of thumb)"
        console.print(
            f"{place}[{colours.get(finding['severity'], 'bold')}]{finding['severity']}[/] [bold]{finding['code']}[/]{mark}: "
            + escape(finding["message"])
        )
        for name in ("snippet", "diagnostic", "limit", "source", "remedy"):
            if finding.get(name):
                console.print(f"    [dim]{name}:[/] {escape(str(finding[name]))}")


def _show_lessons(lessons: list[dict[str, Any]]) -> None:
    for lesson in lessons:
        console.print(
            f"lesson for {lesson['finding']}: [bold]{escape(lesson['title'])}[/] (herdbook get {lesson['id']})"
        )


def _show_facts(facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        if name == "rounding":
            _show_rounding(value)
        elif value is not None and value != {} and value != [] and value != "":
            console.print(f"[dim]{name}:[/] {escape(_words(value))}", soft_wrap=True)


def _words(value: Any) -> str:
    """A value for a person: mappings and lists without their brackets and quotes."""
    if isinstance(value, dict):
        pairs: dict[str, Any] = {str(k): v for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return ", ".join(
            f"{name} {f'({_words(each)})' if isinstance(each, dict) else _words(each)}" for name, each in pairs.items()
        )
    if isinstance(value, list | tuple):
        return ", ".join(_words(each) for each in value)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _show_rounding(rows: list[dict[str, Any]]) -> None:
    table = columns("rounded at", "op", "line", "values", "changed", "largest change", "mean change")
    for row in rows:
        mean = row["sum_relative"] / row["values"] if row["values"] else 0.0
        table.add_row(
            escape(row["kind"]),
            escape(row["op"]),
            str(row["line"] or ""),
            f"{row['values']:,}",
            f"{row['changed']:,}",
            f"{row['max_relative']:.2e}",
            f"{mean:.2e}",
        )
    console.print(table if rows else "nothing was rounded")
