"""What the command lines of all experiments have in common."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.pictures import Picture
from benchmarks.record import commit

PARSE_ONLY = "GRADWEAVE_PARSE_ONLY"
"""Set in the environment, it ends experiments where they would begin to measure."""


class Options(argparse.ArgumentParser):
    """The options of an experiment, and those that all have."""

    def __init__(self, doc: str, picture: Picture | None, resumes: bool) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.picture = picture
        if picture:
            text = "draw what is recorded, and measure nothing"
            self.add_argument("--redraw", action="store_true", help=text)
        if resumes:
            text = "go on: measure only what an earlier run has not"
            self.add_argument("--resume", action="store_true", help=text)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        asked = super().parse_args(args, namespace)
        if os.environ.get(PARSE_ONLY):
            print("would measure" if not getattr(asked, "redraw", False) else "would draw")
            sys.exit()
        if self.picture and asked.redraw:
            self.picture.redraw()
            sys.exit()
        commit()  # that of the tree as it is now, not when the result is written
        return asked


def parser_of(doc: str | None, picture: Picture | None = None, *, resumes: bool = False) -> Options:
    """A parser to which an experiment adds its own options.

    Args:
        doc: of the experiment.
        picture: that it draws; makes `--redraw` draw it alone.
        resumes: whether it can go on where it was ended; makes it do so with `--resume`. Without
            it, an experiment measures everything that it is asked for.
    """
    return Options(doc or "", picture, resumes)
