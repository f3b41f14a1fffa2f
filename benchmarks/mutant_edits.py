"""Small faults for source code: what may be changed where, and samples of it.

An edit changes a few characters: a comparison's boundary, a sign, an index, a condition. None
touches what a test should not pin down: annotations, docstrings, messages, defaults of dataclass
fields that are tuned, and constants of modules.
"""

import ast
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """Characters `start` to `end` of a file replaced by `new`."""

    path: str  # from the repository's root
    line: int  # from 1
    start: int  # in characters of the file
    end: int
    old: str
    new: str
    kind: str

    def applied(self, source: str) -> str:
        """The file's text with the edit.

        Raises:
            ValueError: the text there is another one.
        """
        if source[self.start : self.end] != self.old:
            raise ValueError(f"{self.path}:{self.line} no longer has {self.old!r}")
        return source[: self.start] + self.new + source[self.end :]

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.path}:{self.line}: {old} => {new}"


BOUNDARIES = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "//"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "|"),
}
OTHER_NAMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "any": "all",
    "all": "any",
    "floor": "ceil",
    "ceil": "floor",
    "argmin": "argmax",
    "argmax": "argmin",
    "sum": "max",
    "mean": "sum",
}
UNTESTED_CALLS = {"print", "warn", "ValueError", "TypeError", "field", "NamedTuple", "TypeVar"}


def edits_of(path: str, source: str, lines: set[int] | None = None) -> list[Edit]:
    """All edits of a file, of some lines only if given, in the file's order."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    found = [edit for edit in finder.found if lines is None or edit.line in lines]
    return sorted(found, key=lambda edit: (edit.start, edit.end, edit.new))


def sample(root: Path, folders: Iterable[str], count: int, seed: int) -> list[Edit]:
    """Edits drawn without replacement, one a line at most, every edit as likely as another."""
    draw = random.Random(seed)
    found = sorted(file for folder in folders for file in files(root / folder))
    edits = [
        edit
        for file in found
        for edit in edits_of(file.relative_to(root).as_posix(), file.read_text())
    ]
    draw.shuffle(edits)
    taken: dict[tuple[str, int], Edit] = {}
    for edit in edits:
        if len(taken) == count:
            break
        taken.setdefault((edit.path, edit.line), edit)
    return list(taken.values())


def files(path: Path) -> Iterator[Path]:
    """A file itself, or all of a folder."""
    if path.suffix == ".py":
        yield path
        return
    yield from (file for file in path.rglob("*.py") if file.name != "__init__.py")


class _Finder(ast.NodeVisitor):
    """Collects edits, and leaves out what `edits_of` does not touch."""

    def __init__(self, path: str, source: str) -> None:
        self.path, self.source, self.found = path, source, list[Edit]()
        # ast counts columns in bytes of UTF-8.
        self._lines = [line.encode() for line in source.splitlines(keepends=True)]
        self._begins = [0]
        for line in self._lines:
            self._begins.append(self._begins[-1] + len(line.decode()))

    def _at(self, line: int, column: int) -> int:
        return self._begins[line - 1] + len(self._lines[line - 1][:column].decode())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self._at(node.lineno, node.col_offset),
            self._at(node.end_lineno, node.end_col_offset),
        )

    def _add(self, line: int, start: int, end: int, new: str, kind: str) -> None:
        old = self.source[start:end]
        self.found.append(Edit(self.path, line, start, end, old, new, kind))

    def _between(self, left: ast.expr, right: ast.expr, old: str, new: str, kind: str) -> None:
        """Changes an operator, which stands alone between its operands but for brackets."""
        start, end = self._span(left)[1], self._span(right)[0]
        at = self.source[start:end].find(old)
        if at >= 0:
            self._add(left.end_lineno or 0, start + at, start + at + len(old), new, kind)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in ("__repr__", "__str__", "describe"):
            return
        for default in node.args.defaults + [one for one in node.args.kw_defaults if one]:
            self.visit(default)
        self._statements(node.body)

    def visit_Module(self, node: ast.Module) -> None:
        kept = (ast.FunctionDef, ast.ClassDef)
        self._statements([one for one in node.body if isinstance(one, kept)])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if not any("Error" in ast.unparse(base) for base in node.bases):
            self._statements([one for one in node.body if isinstance(one, ast.FunctionDef)])

    def _statements(self, body: list[ast.stmt]) -> None:
        for one in body:
            self.visit(one)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Messages may be worded in another way."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """So may these."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """What no input can reach."""

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        if isinstance(node.value, ast.Call) and _name(node.value) not in UNTESTED_CALLS:
            self._add(node.lineno, *self._span(node), "pass", "statement left out")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add(node.lineno, *self._span(node), "pass", "statement left out")
        if type(node.op) in ARITHMETIC:
            old, new = (f"{sign}=" for sign in ARITHMETIC[type(node.op)])
            self._between(node.target, node.value, old, new, "arithmetic")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and type(node.ops[0]) in BOUNDARIES:
            old, new = BOUNDARIES[type(node.ops[0])]
            self._between(node.left, node.comparators[0], old, new, "comparison")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = (ast.JoinedStr, ast.List, ast.Tuple)
        sides = (node.left, node.right)
        joins = any(isinstance(x, texts) or _is_text(x) for x in sides)
        if type(node.op) in ARITHMETIC and not joins:
            old, new = ARITHMETIC[type(node.op)]
            self._between(node.left, node.right, old, new, "arithmetic")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        self._between(node.values[-2], node.values[-1], old, new, "condition")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        start, end = self._span(node)
        inner = self.source[slice(*self._span(node.operand))]
        if isinstance(node.op, ast.Not | ast.USub) and end - start > len(inner):
            self._add(node.lineno, start, end, f"({inner})", "sign")
        self.visit(node.operand)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            new = str(not value)
        elif isinstance(value, int):
            new = str(value + 1)
        elif isinstance(value, float):
            new = str(2 * value if value else 1.0)
        else:
            return
        self._add(node.lineno, *self._span(node), new, "constant")

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            return
        raises = all(isinstance(one, ast.Raise) for one in node.body)
        self._add(node.lineno, *self._span(node.test), "False", "branch left out")
        if not raises and node.orelse:
            self._add(node.lineno, *self._span(node.test), "True", "branch left out")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node)
        if name in UNTESTED_CALLS or name.endswith("Error"):
            return
        if name in OTHER_NAMES:
            end = self._span(node.func)[1]
            self._add(node.lineno, end - len(name), end, OTHER_NAMES[name], "function")
        self.generic_visit(node)

    def visit_arguments(self, node: ast.arguments) -> None:
        """Annotations."""


def _name(call: ast.Call) -> str:
    """What is called, without what it belongs to."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
