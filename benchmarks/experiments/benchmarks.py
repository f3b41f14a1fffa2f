"""The package `benchmarks`, for a script here that runs by its path.

`python benchmarks/experiments/NAME.py` searches this folder first, so `import benchmarks` finds
this file. It points at the package, and has the repository searched instead of this folder, for
`tests` and for processes that are started.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
__path__ = [str(ROOT / "benchmarks")]
sys.path[sys.path.index(str(Path(__file__).parent))] = str(ROOT)
