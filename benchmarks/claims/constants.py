"""Numbers that source files write out, read without importing them."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


class QueryError(Exception):
    """A query that cannot be read, or finds nothing."""


@cache
def constant(path: str, name: str) -> float:
    """A number that a source file assigns to a name of its module, or of a class in it."""
    if not (ROOT / path).exists():
        raise QueryError(f"there is no {path}")
    body = ast.parse((ROOT / path).read_text()).body
    *classes, last = name.split(".")
    for wanted in classes:
        body = next((x.body for x in body if isinstance(x, ast.ClassDef) and x.name == wanted), [])
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(x, ast.Name) and x.id == last for x in targets):
            return _number(getattr(node, "value", None), f"{name} of {path}")
    raise QueryError(f"{path} does not define {name}")


def _number(node: ast.AST | None, what: str) -> float:
    """A number, or an arithmetic expression of numbers such as 1 << 30."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand, what)
    if isinstance(node, ast.BinOp):
        a, b = _number(node.left, what), _number(node.right, what)
        by_kind = {ast.LShift: lambda: int(a) << int(b), ast.Pow: lambda: a**b}
        by_kind |= {ast.Mult: lambda: a * b, ast.Div: lambda: a / b, ast.Sub: lambda: a - b}
        if type(node.op) in by_kind:
            return by_kind[type(node.op)]()
    raise QueryError(f"{what} is not a number that is written out")
