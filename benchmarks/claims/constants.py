"""Numbers that files write out or come to, read without importing anything."""

import ast
import json
import math
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
        value = getattr(node, "value", None)
        if isinstance(targets[0], ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(targets[0].elts, value.elts, strict=False))
        else:
            pairs = [(target, value) for target in targets]
        for target, value in pairs:
            if isinstance(target, ast.Name) and target.id == last:
                return _number(value, f"{name} of {path}")
    raise QueryError(f"{path} does not define {name}")


def parameters(path: str) -> float:
    """How many numbers the arrays of a safetensors file have: its head is JSON, with shapes."""
    if not (ROOT / path).exists():
        raise QueryError(f"there is no {path}")
    with (ROOT / path).open("rb") as file:
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(array["shape"]) for name, array in head.items() if name[0] != "_")


def size(path: str) -> float:
    """The bytes of a file."""
    if not (ROOT / path).exists():
        raise QueryError(f"there is no {path}")
    return (ROOT / path).stat().st_size


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
