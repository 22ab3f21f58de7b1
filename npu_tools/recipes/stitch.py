"""Several programs as one function with several launches: what goes into one ELF and is dispatched once.

    stitch("norm_project", {"x": X, "weight": W, "normed": X, "wq": WQ, "q": Q}, [
        Slice("norm", rmsnorm_text, ("x", "weight", "normed")),
        Slice("q", gemm_text, ("normed", "wq", "q")),
    ])

Each slice is a whole AIR program; its function's body becomes part of the stitched one, in order, with its arguments
replaced by the named ones. Values, channels, segments, herds and aliases get the slice's label in front. Kernels of object
files are declared once where they agree; where another slice declares the same symbol with other types, or for another
object, the later one gets the label behind its name, with every kernel of its object, which is then built under that name
too. An argument that two slices shape differently (a matrix here, its elements in a row there) is reshaped inside the
launch. Works on text, as upstream does it; `check_program` judges the result, `flow` says which launch reads and writes what.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from npu_tools.air.dialect import ChannelGetOp, ChannelPutOp, DmaMemcpyNdOp, Hierarchy, LaunchOp
from npu_tools.air.program import Program
from npu_tools.errors import UnusableInput

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|%[\w$.-]+(?:#\d+)?|[#@!][A-Za-z_$][\w$.-]*|->|[<>]=|[{}()<>\[\]]|\n')
_BEGINS = re.compile(r'[ \t]*["#!a-z]')
_LABEL = re.compile(r"[a-z][a-z0-9_]*\Z")
_MEMREF = re.compile(r"memref<((?:\d+x)*)([a-z]\w*)>\Z")
_OPENING, _CLOSING = "{([<", "})]>"


@dataclass(frozen=True, slots=True)
class Slice:
    """One program to be stitched in: its label, its text, and the stitched function's argument behind each of its own.
    `function` names its entry where the module has several."""

    label: str
    program: str
    arguments: Sequence[str]
    function: str | None = None


@dataclass(frozen=True, slots=True)
class _External:
    """A private function of an object file."""

    symbol: str
    types: str
    linked: str | None
    text: str


@dataclass(slots=True)
class _Module:
    """A program taken apart."""

    aliases: list[str]
    externals: list[_External]
    others: list[str]
    arguments: list[tuple[str, str]]
    body: str


@dataclass(slots=True)
class _Whole:
    """What has been stitched so far."""

    types: dict[str, str]
    aliases: list[str] = field(default_factory=list[str])
    externals: dict[str, _External] = field(default_factory=dict[str, _External])
    others: list[str] = field(default_factory=list[str])
    bodies: list[str] = field(default_factory=list[str])


def stitch(name: str, arguments: Mapping[str, str], slices: Sequence[Slice]) -> str:
    """The module with one function, @name, of these arguments (memref types by name, in order).

    Raises:
        UnusableInput: a slice that cannot be taken apart, labels that clash, an argument that is unknown, of another size
            or unused; the text names the slice and the argument.
    """
    if not slices:
        raise UnusableInput(f"{name}: there is nothing to stitch")
    labels = [one.label for one in slices]
    for label in labels:
        if not _LABEL.match(label) or labels.count(label) > 1:
            raise UnusableInput(f"{name}: slices need labels of their own, small letters and digits; {label!r} is none")
    whole = _Whole(dict(arguments))
    for one in slices:
        _add(whole, name, one, _taken_apart(one))
    used = {argument for one in slices for argument in one.arguments}
    unused = [argument for argument in arguments if argument not in used]
    if unused:
        raise UnusableInput(f"{name}: no slice takes {', '.join(unused)}")
    header = ", ".join(f"%{argument}: {kind}" for argument, kind in arguments.items())
    declared = [external.text for external in whole.externals.values()]
    lines = [*whole.aliases, "module {", *whole.others, *declared, f"  func.func @{name}({header}) {{"]
    return "\n".join([*lines, *whole.bodies, "    return", "  }", "}", ""])


def misuses(program: Program, roles: Sequence[str], function: str | None = None) -> list[str]:
    """What the launches of a function do with its arguments that their roles (input, static, scratch, output; a recipe's)
    do not allow: a given one is written, another is read before a launch wrote it, or nothing reads or writes one.

    A clash of argument maps, in which two launches took each other's arguments, shows here without a run.
    """
    entry = next(one for one in program.functions() if function in (None, one.sym_name.data))
    written: set[int] = set()
    touched: set[int] = set()
    found: list[str] = []
    for number, launch in enumerate(op for op in entry.body.block.ops if isinstance(op, LaunchOp)):
        reads, writes = _flow(launch)
        for at in sorted(reads):
            if roles[at] in ("scratch", "output") and at not in written | writes:
                found.append(f"launch {number} reads argument {at}, which no launch has written yet")
        for at in sorted(writes):
            if roles[at] in ("input", "static"):
                found.append(f"launch {number} writes argument {at}, which is given")
        written |= writes
        touched |= reads | writes
    found += [
        f"no launch writes argument {at}" for at, role in enumerate(roles) if role == "output" and at not in written
    ]
    return found + [f"no launch uses argument {at}" for at in range(len(roles)) if at not in touched]


def _flow(launch: LaunchOp) -> tuple[set[int], set[int]]:
    """Arguments of the function that a launch's transfers read, and those they write."""
    reads: set[int] = set()
    writes: set[int] = set()
    for op in launch.walk():
        for value, into in _ends(op):
            at = _argument(value)
            if at is not None:
                (writes if into else reads).add(at)
    return reads, writes


def _ends(op: Operation) -> list[tuple[SSAValue, bool]]:
    match op:
        case DmaMemcpyNdOp():
            return [(op.dst, True), (op.src, False)]
        case ChannelGetOp():
            return [(op.memref, True)]
        case ChannelPutOp():
            return [(op.memref, False)]
        case _:
            return []


def _argument(value: SSAValue) -> int | None:
    """The function's argument a memref is, or is a view of."""
    while True:
        if isinstance(value, OpResult):
            views = [operand for operand in value.op.operands if isinstance(operand.type, MemRefType)]
            if not value.op.name.startswith("memref.") or len(views) != 1:
                return None
            value = views[0]
        elif isinstance(value, BlockArgument):
            owner = value.block.parent_op()
            if not isinstance(owner, Hierarchy):
                return value.index
            held = list(owner.kernel_args)
            if value not in held:
                return None
            value = owner.kernel_operands[held.index(value)]
        else:
            return None


def _add(whole: _Whole, name: str, one: Slice, module: _Module) -> None:
    where = f"{name}: slice {one.label}"
    if len(module.arguments) != len(one.arguments):
        raise UnusableInput(f"{where} takes {len(module.arguments)} arguments, not {len(one.arguments)}")
    reshaped: dict[str, str] = {}
    renamed: dict[str, str] = {}
    for (value, kind), argument in zip(module.arguments, one.arguments, strict=True):
        if argument not in whole.types:
            raise UnusableInput(f"{where} is given {argument!r}; the arguments are {', '.join(whole.types)}")
        renamed[value] = f"%{argument}"
        given = whole.types[argument]
        if _plain(given) != _plain(kind):
            if _size(given) is None or _size(given) != _size(kind):
                raise UnusableInput(f"{where} takes {argument} as {kind}, and it is {given}")
            reshaped[value] = given
    symbols, objects = _names(whole, one.label, module)
    body = _reshape(module.body, reshaped, where)
    aliases = {text.split("=", 1)[0].strip() for text in module.aliases}

    def rewritten(text: str, *, inner: bool = True) -> str:
        def replaced(match: re.Match[str]) -> str:
            token = match.group()
            if token.startswith("%") and inner:
                stem, _, number = token.partition("#")
                new = renamed.get(stem, f"%{one.label}_{stem[1:]}")
                return f"{new}#{number}" if number else new
            if token.startswith("@"):
                return "@" + symbols.get(token[1:], f"{one.label}_{token[1:]}")
            if token[0] in "#!" and token in aliases:
                return f"{token[0]}{one.label}_{token[1:]}"
            if token.startswith('"'):
                return f'"{objects[token[1:-1]]}"' if token[1:-1] in objects else token
            return token

        return _TOKEN.sub(replaced, text)

    whole.aliases += [rewritten(alias) for alias in module.aliases]
    whole.others += [rewritten(other) for other in module.others]
    for external in module.externals:
        new = symbols[external.symbol]
        if new not in whole.externals:
            whole.externals[new] = _External(new, external.types, _mapped(external, objects), rewritten(external.text))
    whole.bodies.append(rewritten(body))


def _names(whole: _Whole, label: str, module: _Module) -> tuple[dict[str, str], dict[str, str]]:
    """Kernels and objects by their names here: as they are, or with the label in front where that would clash."""
    clashing: set[str | None] = set()
    for external in module.externals:
        known = whole.externals.get(external.symbol)
        if known is not None and (known.types, known.linked) != (external.types, external.linked):
            clashing.add(external.linked)
    symbols: dict[str, str] = {}
    objects: dict[str, str] = {}
    for external in module.externals:
        own = external.linked in clashing
        symbols[external.symbol] = f"{label}_{external.symbol}" if own else external.symbol
        if own and external.linked is not None:
            objects[external.linked] = f"{label}_{external.linked}"
    return symbols, objects


def _mapped(external: _External, objects: Mapping[str, str]) -> str | None:
    return objects.get(external.linked, external.linked) if external.linked is not None else None


def _taken_apart(one: Slice) -> _Module:
    """Aliases, kernels of object files, other symbols, and the entry function's arguments and body."""
    text, where = one.program, f"slice {one.label}"
    start = re.search(r"^\s*(?:builtin\.)?module\b", text, re.MULTILINE)
    if start is None:
        raise UnusableInput(f"{where} has no module")
    opened = _brace(text, start.end(), where)
    closed = _matching(text, opened, where)
    around = [text[: start.start()], text[closed + 1 :]]
    aliases = [line for part in around for line in _statements(part) if line.lstrip()[:1] in "#!"]
    externals: list[_External] = []
    others: list[str] = []
    entries: dict[str, tuple[list[tuple[str, str]], str]] = {}
    for statement in _statements(text[opened + 1 : closed]):
        if not re.match(r'\s*"?func\.func\b', statement):
            others.append(statement)
            continue
        header = re.match(r"\s*func\.func\s+(private\s+|public\s+)?@([\w$.-]+)\s*", statement)
        if header is None:
            raise UnusableInput(f"{where}: cannot read {statement.strip()[:60]!r}")
        body = _body(statement, header.end(), where)
        if body is None:
            linked = re.search(r'link_with\s*=\s*"([^"]+)"', statement)
            end = _matching(statement, header.end(), where)
            types = _plain(statement[header.end() : end + 1])
            externals.append(_External(header[2], types, linked[1] if linked else None, statement))
        else:
            entries[header[2]] = (_header_arguments(statement, header.end(), where), body)
    wanted = one.function or (next(iter(entries)) if len(entries) == 1 else None)
    if wanted not in entries:
        raise UnusableInput(f"{where}: say which function is meant; there are {', '.join(entries) or 'none'}")
    if len(entries) > 1:
        raise UnusableInput(f"{where}: {', '.join(entries)} have bodies; only one function may")
    arguments, body = entries[wanted]
    return _Module(aliases, externals, others, arguments, body)


def _statements(text: str) -> list[str]:
    """Ops and aliases of one level: each begins on a line of its own, where no bracket is open."""
    starts, depth = ([0] if _BEGINS.match(text) else []), 0
    for token in _TOKEN.finditer(text):
        word = token.group()
        if word in _OPENING:
            depth += 1
        elif word in _CLOSING:
            depth -= 1
        elif word == "\n" and depth == 0 and _BEGINS.match(text, token.end()):
            starts.append(token.end())
    return [text[start:end].strip("\n").rstrip() for start, end in pairwise([*starts, len(text)])]


def _brace(text: str, start: int, where: str) -> int:
    """The brace that opens a region, past an attribute dictionary."""
    for token in _TOKEN.finditer(text, start):
        if token.group() == "{":
            if text[: token.start()].rstrip().endswith("attributes"):
                return _brace(text, _matching(text, token.start(), where) + 1, where)
            return token.start()
    raise UnusableInput(f"{where} has no region where one must be")


def _matching(text: str, start: int, where: str) -> int:
    depth = 0
    for token in _TOKEN.finditer(text, start):
        word = token.group()
        if word in _OPENING:
            depth += 1
        elif word in _CLOSING:
            depth -= 1
            if depth == 0:
                return token.start()
    raise UnusableInput(f"{where}: a bracket is never closed")


def _body(statement: str, start: int, where: str) -> str | None:
    """What stands in a function, without its return; nothing for a declaration."""
    end = _matching(statement, start, where) + 1
    rest = re.match(r"\s*(?:->\s*[^{]*?)?\s*(?:attributes\s*)?\{", statement[end:])
    if rest is None:
        return None
    opened = end + rest.end() - 1
    if "attributes" in rest.group():
        after = _matching(statement, opened, where) + 1
        if not re.match(r"\s*\{", statement[after:]):
            return None
        opened = statement.index("{", after)
    if "->" in rest.group():
        raise UnusableInput(f"{where}: its function gives results; it must write to its arguments")
    inside = statement[opened + 1 : _matching(statement, opened, where)].rstrip()
    cut = re.search(r"\n\s*(?:func\.)?return\s*\Z", inside)
    if cut is None:
        raise UnusableInput(f"{where}: its function does not end in a return without operands")
    return inside[: cut.start()].strip("\n")


def _header_arguments(statement: str, start: int, where: str) -> list[tuple[str, str]]:
    inside = statement[start + 1 : _matching(statement, start, where)]
    pairs = [piece.partition(":") for piece in _split(inside)]
    if any(not name.strip().startswith("%") or not kind.strip() for name, _, kind in pairs):
        raise UnusableInput(f"{where}: cannot read the arguments {inside[:60]!r}")
    return [(name.strip(), re.sub(r"\s*\{[^{}]*\}\s*\Z", "", kind.strip())) for name, _, kind in pairs]


def _split(text: str) -> list[str]:
    """At commas outside brackets."""
    pieces, depth = [""], 0
    for letter in text:
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if letter == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    return [piece for piece in pieces if piece.strip()]


def _reshape(body: str, reshaped: Mapping[str, str], where: str) -> str:
    """The body with these function arguments taken as `reshaped` says, and given their own shape inside each launch."""
    if not reshaped:
        return body
    done, rest = "", body
    while True:
        launch = re.search(r"^(\s*)(?:%[\w$.-]+ = )?air\.launch\b", rest, re.MULTILINE)
        if launch is None:
            break
        opened = _region_of(rest, launch.end(), where)
        header, inside = rest[launch.end() : opened], rest[opened + 1 :]
        header, lines = _retyped(header, reshaped, where)
        indent = launch[1].strip("\n") + "  "
        done += rest[: launch.end()] + header + "{" + "".join(f"\n{indent}{line}" for line in lines)
        rest = inside
    outside = [
        value for value in reshaped if re.search(rf"{re.escape(value)}\b", _without_launch_operands(done + rest))
    ]
    if outside:
        raise UnusableInput(f"{where} uses {outside[0]}, which is shaped otherwise, outside a launch")
    return done + rest


def _without_launch_operands(body: str) -> str:
    return re.sub(r"(air\.launch\b[^{]*?)args\([^)]*\)", r"\1", body)


def _region_of(text: str, start: int, where: str) -> int:
    """The brace that opens a launch's region: outside brackets, past `attributes {…}`."""
    return _brace(text, start, where)


def _retyped(header: str, reshaped: Mapping[str, str], where: str) -> tuple[str, list[str]]:
    """A launch's header with the outer types, and the lines that reshape inside."""
    found = re.search(r"args\(", header)
    if found is None:
        return header, []
    closed = _matching(header, found.end() - 1, where)
    colon = header.index(":", closed)
    tail = re.search(r"\s+attributes\s*\{", header[colon:])
    end = colon + tail.start() if tail else len(header.rstrip())
    pairs = [piece.partition("=") for piece in _split(header[found.end() : closed])]
    types = [kind.strip() for kind in _split(header[colon + 1 : end])]
    lines: list[str] = []
    names: list[str] = []
    for at, (inner, _, outer) in enumerate(pairs):
        inner, outer = inner.strip(), outer.strip()
        if outer in reshaped:
            lines += _reshaping(inner, types[at], reshaped[outer])
            types[at] = reshaped[outer]
            inner = f"{inner}_whole"
        names.append(f"{inner}={outer}")
    return f"{header[: found.end()]}{', '.join(names)}) : {', '.join(types)}{header[end:]}", lines


def _reshaping(value: str, to: str, of: str) -> list[str]:
    """A dense memref in another shape, without a copy: flattened, unless it is flat, then spread, unless it must be."""
    shape, target = _shape(of), _shape(to)
    element = _plain(of).rpartition("x")[2][:-1]
    flat = f"memref<{math.prod(shape)}x{element}>"
    lines: list[str] = []
    source = f"{value}_whole"
    if len(shape) > 1:
        result = value if len(target) == 1 else f"{value}_flat"
        dims = ", ".join(map(str, range(len(shape))))
        lines.append(f"{result} = memref.collapse_shape {source} [[{dims}]] : {of} into {flat}")
        source = result
    if len(target) > 1:
        dims, sizes = ", ".join(map(str, range(len(target)))), ", ".join(map(str, target))
        lines.append(f"{value} = memref.expand_shape {source} [[{dims}]] output_shape [{sizes}] : {flat} into {to}")
    return lines


def _shape(kind: str) -> list[int]:
    found = _MEMREF.match(_plain(kind))
    return [int(size) for size in found[1].split("x")[:-1]] if found else []


def _size(kind: str) -> tuple[int, str] | None:
    """Elements and their type, of a dense memref in L3."""
    found = _MEMREF.match(_plain(kind))
    return (math.prod(_shape(kind)), found[2]) if found else None


def _plain(text: str) -> str:
    return re.sub(r"\s+", "", text)
