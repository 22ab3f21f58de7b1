"""Whole-number expressions in kernel.toml: shapes, repeats and defaults over a kernel's axes and settings.

>>> evaluate("n_heads * head_dim", {"n_heads": 8, "head_dim": 64})
512

Names, numbers, strings, `+ - * / // %`, comparisons, `and or not`, `a if b else c`, lists, and max, min, sqrt. Nothing
else: a manifest is data, and evaluating it must not be running it.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from npu_tools.errors import UnusableInput

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"max": max, "min": min, "sqrt": math.sqrt}


def evaluate(expression: str | int | float, names: Mapping[str, Any]) -> Any:
    """The value of an expression; a number stands for itself.

    Raises:
        UnusableInput: it is no such expression, or a name is unknown.
    """
    if not isinstance(expression, str):
        return expression
    try:
        return _value(ast.parse(expression, mode="eval").body, names)
    except SyntaxError:
        raise UnusableInput(f"{expression!r} is no expression") from None
    except (ZeroDivisionError, TypeError, ValueError, OverflowError) as error:
        raise UnusableInput(f"{expression!r} has no value: {error}") from None


def whole(expression: str | int, names: Mapping[str, Any]) -> int:
    """The value of an expression that must be a whole number.

    Raises:
        UnusableInput: it is none.
    """
    found = evaluate(expression, names)
    if isinstance(found, bool) or not isinstance(found, int):
        raise UnusableInput(f"{expression!r} is {found!r}, and must be a whole number")
    return found


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str() as value):
            return value
        case ast.Name(id=name):
            if name not in names:
                raise UnusableInput(f"{name!r} is neither an axis nor a setting; there are {', '.join(sorted(names))}")
            return names[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, names), _value(right, names))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, names)
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_value(each, names) for each in values)
        case ast.BoolOp(values=values):
            return any(_value(each, names) for each in values)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return _COMPARE[type(op)](_value(left, names), _value(right, names))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, names) else orelse, names)
        case ast.List(elts=items):
            return [_value(each, names) for each in items]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(each, names) for each in args))
        case _:
            raise UnusableInput(f"{ast.unparse(node)!r} may not stand in an expression")
