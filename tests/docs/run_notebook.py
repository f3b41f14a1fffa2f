"""Runs the cells of one notebook, in order, in the current directory: python run_notebook.py PATH.

Cells share the namespace of `__main__`, as in a notebook, and what a cell's last expression is
gets drawn as a notebook would draw it. Ends with 1 and the cell's number at the first that fails.
"""

import ast
import json
import sys
from pathlib import Path


def main() -> None:
    cells = json.loads(Path(sys.argv[1]).read_text())["cells"]
    names = sys.modules["__main__"].__dict__
    for number, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        try:
            draw(value_of("".join(cell["source"]), f"<cell {number}>", names))
        except Exception as error:
            raise RuntimeError(f"{sys.argv[1]}: cell {number} failed") from error


def value_of(source: str, place: str, names: dict[str, object]) -> object:
    """Runs a cell; the value of its last statement if that is an expression."""
    tree = ast.parse(source, place)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, place, "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), place, "eval"), names)


def draw(value: object) -> None:
    """Asks for a picture first, as notebooks do."""
    for method in ("_repr_html_", "_repr_svg_"):
        if (drawn := getattr(value, method, lambda: None)()) is not None:
            print(f"{len(drawn):,} characters drawn")
            return
    if value is not None:
        print(repr(value))


if __name__ == "__main__":
    main()
