"""A command in a namespace: ``python -m gradweave.lab.inside NAMESPACE COMMAND…``.

The process becomes the command, which keeps its id and what started it.
"""

import os
import sys

from pyroute2 import netns

if __name__ == "__main__":
    netns.setns(sys.argv[1])
    os.execvp(sys.argv[2], sys.argv[2:])
