"""A small language for figures that are computed from recorded results.

    100 * mean(unequal_networks_gap:rows[kind=racks, gradient_bytes<1e9].gap)

A path begins with the name of a file in `benchmarks/results/`; its steps are keys, `*` for all
values of an object, and filters in brackets: an index, or conditions on a row (`=`, `!=`, `<`,
`<=`, `>`, `>=`, `~` for “contains”). Lists are entered where a step meets one, and null is left
out. Words with other signs than letters, digits and `_` stand in quotes, single or double. A path
that finds nothing is an error, and so is a condition on a key that no row has. A dot may stand
between two brackets, `[3].[4]`, since Markdown reads `[3][4]` as a link.

`code(src/gradweave/probe/rates.py, SLOT_S)` is a constant in the source, of a module or a class
(`Settings.timeout_s`) or a default of a function, read without importing it; further words lead
into tuples, dictionaries and calls: `code(src/gradweave/report/page.py, LIMITS, nodes)`.
`bytes('…')` is the size of a file, and `parameters('…')` how many numbers a safetensors file has.

Lists combine by element. Nothing is evaluated by Python.

Templates of tables (`benchmarks/table_templates.py`) compute their cells so, too: there, a path
that names no file begins at the row, or rows, of the line, `mean([kind=racks].gap)`, and what a
row does not have is left out.
"""

import json
import math
import operator
import re
import statistics
from collections.abc import Callable
from functools import cache
from typing import Any

from benchmarks.claims.constants import ROOT, QueryError, constant, parameters, size

RESULTS = ROOT / "benchmarks" / "results"

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:e[-+]?\d+)?|\.\d+)(?![\w:])"
    r"|(?P<word>[A-Za-z_0-9][\w/]*(?:\.py\b)?)|'(?P<quoted>[^']*)'"
    r'|"(?P<other>[^"]*)"'
    r"|(?P<sign><=|>=|!=|[-+*/()\[\].,:=<>~]))"
)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": lambda a, b: str(b) in str(a),
}
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_AGGREGATES: dict[str, Callable[[list], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "std": statistics.stdev,
    "min": min,
    "max": max,
    "sum": sum,
    "count": len,
    "distinct": lambda values: len(set(map(str, values))),
}
_BY_ELEMENT: dict[str, Callable[[float], float]] = {
    "abs": abs,
    "sqrt": math.sqrt,
    "log10": math.log10,
    "log2": math.log2,
}


@cache
def _result(name: str) -> Any:
    path = RESULTS / f"{name}.json"
    if not path.exists():
        raise QueryError(f"there is no benchmarks/results/{name}.json")
    return json.loads(path.read_text())


def _rows(nodes: list) -> list:
    """The nodes, with the items of those that are lists."""
    return [x for node in nodes for x in (_rows(node) if isinstance(node, list) else [node])]


_OF_FILES: dict[str, Callable[[str], float]] = {"parameters": parameters, "bytes": size}


class _Parser:
    """Reads and computes in one pass, by recursive descent."""

    def __init__(self, text: str, root: Any = None) -> None:
        self.text, self.tokens, self.root = text, [], root
        end = 0
        while text[end:].strip():
            match = _TOKEN.match(text, end)
            if match is None:
                raise QueryError(f"unexpected {text[end:].strip()[:10]!r} in: {text}")
            self.tokens.append((match.lastgroup, match[match.lastgroup or 0]))
            end = match.end()
        self.at = 0

    def peek(self) -> str | None:
        """The next sign, or none where a word or a number comes."""
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else (None, None)
        return text if kind == "sign" else None

    def take(self, *signs: str) -> str | None:
        """The next sign, taken, if it is one of these."""
        if (sign := self.peek()) in signs and sign is not None:
            self.at += 1
            return sign
        return None

    def need(self, sign: str) -> None:
        if not self.take(sign):
            raise QueryError(f"expected {sign!r} after {self.read()!r} in: {self.text}")

    def read(self) -> str:
        return " ".join(text for _, text in self.tokens[: self.at])

    def word(self) -> tuple[str, str]:
        """The next word or number, with its kind."""
        if self.at < len(self.tokens) and self.tokens[self.at][0] != "sign":
            self.at += 1
            return self.tokens[self.at - 1]
        raise QueryError(f"expected a word or a number after {self.read()!r} in: {self.text}")

    def whole(self) -> list:
        value = self.compared()
        if self.at < len(self.tokens):
            raise QueryError(f"expected the end after {self.read()!r} in: {self.text}")
        return value

    def compared(self) -> list:
        left = self.added()
        while sign := self.take("<", "<=", ">", ">=", "=", "!="):
            left = self.by_element(_COMPARE[sign], left, self.added())
        return left

    def added(self) -> list:
        left = self.multiplied()
        while sign := self.take("+", "-"):
            left = self.by_element(_ARITHMETIC[sign], left, self.multiplied())
        return left

    def multiplied(self) -> list:
        left = self.single()
        while sign := self.take("*", "/"):
            left = self.by_element(_ARITHMETIC[sign], left, self.single())
        return left

    def by_element(self, function: Callable, left: list, right: list) -> list:
        if 1 not in (len(left), len(right)) and len(left) != len(right):
            raise QueryError(f"{len(left)} values beside {len(right)} in: {self.text}")
        if self.root is not None and not (left and right):
            return []
        size = max(len(left), len(right))
        left, right = (x * size if len(x) == 1 else x for x in (left, right))
        return [function(a, b) for a, b in zip(left, right, strict=True)]

    def single(self) -> list:
        if self.take("-"):
            return [-x for x in self.single()]
        if self.take("("):
            value = self.compared()
            self.need(")")
            return value
        if self.root is not None and self.peek() == "[":
            return self.path([self.root])
        kind, text = self.word()
        if kind == "number":
            return [float(text)]
        if self.take(":"):
            return self.path(self.step([_result(text)]))
        if self.root is not None and self.peek() != "(":
            self.at -= 1
            return self.path(self.step([self.root]))
        self.need("(")
        value = self.called(text)
        self.need(")")
        return value

    def called(self, name: str) -> list:
        if name == "code":
            _, path = self.word()
            self.need(",")
            names = [self.word()[1]]
            while self.take("."):
                names.append(self.word()[1])
            items = []
            while self.take(","):
                items.append(self.word()[1])
            return [constant(path, ".".join(names), *items)]
        if name in _OF_FILES:
            return [_OF_FILES[name](self.word()[1])]
        value = self.compared()
        if name in _AGGREGATES:
            if self.root is not None and not value and name not in ("sum", "count"):
                return []
            return [_AGGREGATES[name](value)]
        if name in _BY_ELEMENT:
            return [_BY_ELEMENT[name](x) for x in value]
        known = ", ".join(["code", *_OF_FILES, *_AGGREGATES, *_BY_ELEMENT])
        raise QueryError(f"unknown function {name}: expected one of {known}")

    def path(self, nodes: list) -> list:
        """What the filters and steps that follow lead to."""
        counted = self.root is not None
        while True:
            while self.take("["):
                nodes, counted = self.filtered(nodes), True
                self.need("]")
            if not self.take("."):
                break
            if self.peek() == "[":
                continue
            nodes, counted = self.step(nodes), self.root is not None
        found = [x for x in _rows(nodes) if x is not None]
        if not found and not counted:
            raise QueryError(f"found nothing: {self.read()}")
        return found

    def step(self, nodes: list) -> list:
        if self.take("*"):
            return [x for node in _rows(nodes) for x in node.values()]
        key = self.word()[1]
        rows = _rows(nodes)
        found = [x[key] for x in rows if isinstance(x, dict) and key in x]
        if rows and not found and self.root is None:
            raise QueryError(f"no {key!r} there: {self.read()}")
        return found

    def filtered(self, nodes: list) -> list:
        sign = -1 if self.take("-") else 1
        kind, text = self.tokens[self.at]
        if kind == "number" and self.tokens[self.at + 1] == ("sign", "]"):
            self.at += 1
            try:
                return [node[sign * int(text)] for node in nodes]
            except (IndexError, KeyError, TypeError) as error:
                raise QueryError(f"no item {text}: {self.read()}") from error
        rows = _rows(nodes)
        while True:
            rows = self.condition(rows)
            if not self.take(","):
                return [rows]  # one list, so that an index may follow

    def condition(self, rows: list) -> list:
        keys = [self.word()[1]]
        while self.take("."):
            keys.append(self.word()[1])
        sign = self.take(*_COMPARE)
        if sign is None:
            raise QueryError(f"expected a comparison after {self.read()!r} in: {self.text}")
        minus = -1 if self.take("-") else 1
        kind, text = self.word()
        wanted: Any = minus * float(text) if kind == "number" else text
        literal = {"true": True, "false": False, "null": None}
        if kind == "word":
            wanted = literal.get(text, text)
        having = [
            (row, value) for row in rows for value in [_inside(row, keys)] if value is not _NO
        ]
        if rows and not having and self.root is None:
            raise QueryError(f"no row has {'.'.join(keys)!r}: {self.read()}")
        try:
            compare = _COMPARE[sign]
            return [
                row for row, x in having if (x is not None or sign in "!=") and compare(x, wanted)
            ]
        except TypeError as error:
            raise QueryError(f"cannot compare with {text!r}: {self.read()}") from error


_NO = object()


def _inside(row: Any, keys: list[str]) -> Any:
    for key in keys:
        if not isinstance(row, dict) or key not in row:
            return _NO
        row = row[key]
    return row


def values(text: str, root: Any = None) -> list:
    """What a query comes to, which may be several things, and objects.

    Args:
        text: the query.
        root: where paths begin that name no file.

    Raises:
        QueryError: if it cannot be read or, without a root, finds nothing.
    """
    try:
        return _Parser(text, root).whole()
    except (ArithmeticError, statistics.StatisticsError, TypeError, ValueError) as error:
        raise QueryError(f"{error}: {text}") from error


def evaluate(text: str) -> float:
    """The number that a query comes to.

    Raises:
        QueryError: if it cannot be read, finds nothing, or gives more than one number.
    """
    found = values(text)
    if len(found) != 1 or not isinstance(found[0], int | float):
        raise QueryError(f"{len(found)} values where one number is expected: {text}")
    return float(found[0])
