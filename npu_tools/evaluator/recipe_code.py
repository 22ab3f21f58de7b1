"""Reading recipe code that a deployment changed: what a design or a host part must not contain.

A design prints a program from a shape and settings; a host part moves data. Neither needs files, the environment, the
interpreter's insides, tables of numbers, or memory between calls. Reading cannot prove honesty (rederive.py runs the
code); it names the ways of cheating that leave a trace in the text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from npu_tools.evaluator.reasons import Reason

MAY_IMPORT = {
    "__future__", "typing", "collections.abc", "contextlib", "dataclasses", "enum", "functools", "itertools", "math",
    "numpy", "numpy.typing", "ml_dtypes", "npu_tools.recipes", "npu_tools.errors", "npu_tools.recipes.stitch",
    "npu_tools.recipes.text",
}  # fmt: skip
NO_CALLS = {
    "open",
    "exec",
    "eval",
    "compile",
    "__import__",
    "globals",
    "locals",
    "vars",
    "input",
    "breakpoint",
    "setattr",
}
NO_ATTRIBUTES = {
    "environ", "getenv", "load", "loadtxt", "genfromtxt", "fromfile", "memmap", "save", "savez", "tofile", "ctypeslib",
    "read_text", "read_bytes", "write_text", "write_bytes", "modules", "random",
}  # fmt: skip
COMPUTING = {
    "dot", "matmul", "einsum", "tensordot", "inner", "outer", "vdot", "exp", "exp2", "tanh", "sqrt", "cumsum", "mean",
    "sum", "add", "multiply", "convolve", "linalg", "fft", "log", "power", "divide", "maximum", "var", "std",
}  # fmt: skip
MOST_NUMBERS, LONGEST_TEXT, MOST_BYTES = 96, 4000, 256
"""Beyond these a literal is data: shipped designs hold at most a dozen numbers in a row."""


def read_recipe_code(path: Path, text: str) -> Iterator[Reason]:
    """What speaks against a changed design.py or host.py."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        yield Reason("verify_only", f"{_called(path)} is no Python: {error}", _called(path))
        return
    yield from _reaching_out(path, tree)
    yield from _data(path, tree)
    if path.stem == "host":
        yield from _host(path, tree)
    else:
        yield from _special_cases(path, tree)
        yield from _memory(path, tree, "verify_only")


def same_code(left: str, right: str) -> bool:
    """Whether two modules are the same but for comments, blank lines and docstrings."""
    try:
        return _bare(left) == _bare(right)
    except (SyntaxError, ValueError):
        return left == right


def _bare(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) or not body:
            continue
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


def _reaching_out(path: Path, tree: ast.Module) -> Iterator[Reason]:
    for node in ast.walk(tree):
        told = ""
        match node:
            case ast.Import(names=names):
                told = next((f"imports {one.name}" for one in names if one.name not in MAY_IMPORT), "")
            case ast.ImportFrom(module=module, level=level):
                told = f"imports from {'.' * level}{module or ''}" if level or module not in MAY_IMPORT else ""
            case ast.Call(func=ast.Name(id=name)) if name in NO_CALLS:
                told = f"calls {name}"
            case ast.Attribute(attr=name) if name in NO_ATTRIBUTES or _dunder(name):
                told = f"uses .{name}"
            case ast.Name(id=name) if _dunder(name) and name not in {"__file__", "__name__"}:
                told = f"uses {name}"
            case ast.Call(func=ast.Name(id="getattr"), args=[_, second, *_]) if not isinstance(second, ast.Constant):
                told = "looks attributes up by computed names"
            case _:
                continue
        if told:
            yield Reason("recipe_reaches_out", f"{_called(path)} {told}", _place(path, node))


def _data(path: Path, tree: ast.Module) -> Iterator[Reason]:
    for node in ast.walk(tree):
        told = ""
        match node:
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items) if _numbers(items) > MOST_NUMBERS:
                told = f"a literal of {_numbers(items)} numbers"
            case ast.Constant(value=str() as text) if len(text) > LONGEST_TEXT or 'dense<"0x' in text:
                told = f"a text of {len(text)} characters"
            case ast.Constant(value=bytes() as raw) if len(raw) > MOST_BYTES:
                told = f"{len(raw)} bytes"
            case _:
                continue
        if told:
            yield Reason("recipe_embeds_data", f"{_called(path)} holds {told}", _place(path, node))


def _host(path: Path, tree: ast.Module) -> Iterator[Reason]:
    for node in ast.walk(tree):
        told = ""
        match node:
            case ast.BinOp(op=ast.MatMult()):
                told = "multiplies matrices (@)"
            case ast.Attribute(attr=name) if name in COMPUTING:
                told = f"computes (.{name})"
            case _:
                continue
        if told:
            yield Reason("host_computes", f"{_called(path)} {told}; the kernel must do it", _place(path, node))
    yield from _memory(path, tree, "host_computes")


def _memory(path: Path, tree: ast.Module, code: str) -> Iterator[Reason]:
    """State that outlives a call."""
    held = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and _mutable(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Global() | ast.Nonlocal():
                yield Reason(code, f"{_called(path)} keeps values between calls", _place(path, node))
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()) if name in held:
                yield Reason(code, f"{_called(path)} keeps values in {name} between calls", _place(path, node))
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=way)) if name in held and way in _CHANGING:
                yield Reason(code, f"{_called(path)} keeps values in {name} between calls", _place(path, node))
            case _:
                continue


_CHANGING = {"append", "update", "setdefault", "add", "extend", "insert", "pop", "clear"}


def _special_cases(path: Path, tree: ast.Module) -> Iterator[Reason]:
    """`shape["M"] == 512`: one size singled out."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare) or not any(isinstance(op, ast.Eq | ast.In) for op in node.ops):
            continue
        sides = [node.left, *node.comparators]
        sized = any(isinstance(n, ast.Name) and n.id == "shape" for side in sides for n in ast.walk(side))
        constants = [n.value for side in sides for n in ast.walk(side) if isinstance(n, ast.Constant)]
        if sized and any(isinstance(value, int) and value > 16 for value in constants):
            yield Reason("shape_special_case", f"{_called(path)} singles out a size", _place(path, node))


def _mutable(node: ast.expr | None) -> bool:
    return isinstance(node, ast.List | ast.Dict | ast.Set) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"dict", "list", "set"}
    )


def _numbers(items: list[ast.expr]) -> int:
    return sum(
        isinstance(n, ast.Constant) and isinstance(n.value, int | float) for item in items for n in ast.walk(item)
    )


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _called(path: Path) -> str:
    return f"recipes/{path.parent.name}/{path.name}"


def _place(path: Path, node: ast.AST) -> str:
    return f"{_called(path)}:{getattr(node, 'lineno', 0)}"
