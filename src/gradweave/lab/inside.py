"""Runs a command in a namespace: ``python inside.py NAMESPACE COMMAND…``.

The process turns into the command, and keeps its id and its parent. It imports almost nothing,
since each of a lab's servers starts in this way.
"""

import ctypes
import os
import sys

_NAMESPACES = "/var/run/netns"
_CLONE_NEWNET = 0x40000000
_SET_PARENT_DEATH_SIGNAL, _KILL = 1, 9

if __name__ == "__main__":
    namespace = os.open(f"{_NAMESPACES}/{sys.argv[1]}", os.O_RDONLY | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns", sys.argv[1])
    libc.prctl(_SET_PARENT_DEATH_SIGNAL, _KILL)  # ends the command with a killed lab
    os.execvp(sys.argv[2], sys.argv[2:])
