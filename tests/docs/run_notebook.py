"""Runs the cells of one notebook, in order, in the current directory.

    python run_notebook.py PATH [--write]

Cells share the namespace of `__main__`, as in a notebook, and the value of a cell's last expression
is drawn as a notebook would draw it. Ends with 1 and the cell's number at the first that fails.
With --write the file gets the outputs: printed text, and pictures as SVG. A page that plays a
schedule is stored as a picture of its fullest round, since sites that display notebooks remove
scripts.
"""

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def main(path: Path, write: bool) -> None:
    notebook = json.loads(path.read_text())
    names = sys.modules["__main__"].__dict__
    count = 0
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        count += 1
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                value = value_of("".join(cell["source"]), f"<cell {number}>", names)
            outputs = [*text_output(printed.getvalue()), *value_output(value, count)]
        except Exception as error:
            raise RuntimeError(f"{path}: cell {number} failed") from error
        print(printed.getvalue(), end="")
        if value is not None:
            print(f"{sum(len(str(one)) for one in outputs):,} characters drawn")
        if write:
            cell |= {"outputs": outputs, "execution_count": count}
    if write:
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def value_of(source: str, place: str, names: dict[str, object]) -> object:
    """Runs a cell; the value of its last statement if that is an expression."""
    tree = ast.parse(source, place)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, place, "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), place, "eval"), names)


def text_output(text: str) -> list[dict[str, Any]]:
    lines = text.splitlines(keepends=True)
    return [{"output_type": "stream", "name": "stdout", "text": lines}] if lines else []


def value_output(value: Any, count: int) -> list[dict[str, Any]]:
    """A value as notebooks display it; every method by which they ask is called."""
    if value is None:
        return []
    getattr(value, "_repr_html_", lambda: None)()
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    if svg := getattr(value, "_repr_svg_", lambda: None)():
        data["image/svg+xml"] = svg.splitlines(keepends=True)
    kind = {"output_type": "execute_result", "execution_count": count, "metadata": {}}
    return [kind | {"data": data}]


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--write" in sys.argv[2:])
