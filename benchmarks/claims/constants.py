"""Numbers that files write out or come to, read without importing anything."""

import ast
import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


class QueryError(Exception):
    """A query that cannot be read, or finds nothing."""


@cache
def constant(path: str, name: str, *items: str) -> float:
    """A number that a source file gives a name: of its module, a class, or a function's default.

    Args:
        path: of the file, from the repository's root.
        name: with the class or the function that it is in, if any: ``Settings.timeout_s``.
        items: what of its value is meant, if that is a tuple (an index), a dictionary (a key), or
            a call (a keyword).
    """
    if not (ROOT / path).exists():
        raise QueryError(f"there is no {path}")
    node: ast.AST = ast.parse((ROOT / path).read_text())
    *scopes, last = name.split(".")
    for wanted in scopes:
        inside = (x for x in ast.iter_child_nodes(node) if getattr(x, "name", None) == wanted)
        node = next(inside, ast.Pass())
    for target, value in _named(node):
        if target == last:
            for item in items:
                value = _item(value, item)
            return _number(value, f"{'.'.join([name, *items])} of {path}")
    raise QueryError(f"{path} does not define {name}")


def _named(scope: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """The names that a module or class assigns, or that a function has defaults for."""
    if isinstance(scope, ast.FunctionDef):
        given = scope.args.args[len(scope.args.args) - len(scope.args.defaults) :]
        for names, values in (
            (given, scope.args.defaults),
            (scope.args.kwonlyargs, scope.args.kw_defaults),
        ):
            yield from ((x.arg, value) for x, value in zip(names, values, strict=True))
    for node in getattr(scope, "body", []):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(targets[0], ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = zip(targets[0].elts, value.elts, strict=False)
        else:
            pairs = ((target, value) for target in targets)
        yield from ((target.id, given) for target, given in pairs if isinstance(target, ast.Name))


def _item(node: ast.AST | None, item: str) -> ast.AST | None:
    """A part of a value that is written out."""
    if isinstance(node, ast.Tuple | ast.List) and int(item) < len(node.elts):
        return node.elts[int(item)]
    if isinstance(node, ast.Dict):
        keys = [getattr(key, "value", None) for key in node.keys]
        return node.values[keys.index(item)] if item in keys else None
    if isinstance(node, ast.Call):
        return next((x.value for x in node.keywords if x.arg == item), None)
    return None


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
