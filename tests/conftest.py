"""What all tests share: how Hypothesis searches, and what a report says about the machine."""

import os
import platform
from importlib.metadata import version

import hypothesis

# The same examples on every run, so that a failure is the change's and not the day's; locally,
# HYPOTHESIS_PROFILE=search looks for new ones.
hypothesis.settings.register_profile(
    "steady", deadline=None, derandomize=True, print_blob=True, database=None
)
hypothesis.settings.register_profile("search", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def pytest_report_header() -> str:
    libraries = ("numpy", "numba", "networkx", "ortools", "msgspec")
    versions = ", ".join(f"{library} {version(library)}" for library in libraries)
    return f"machine: {platform.machine()}, {os.cpu_count()} cores; {versions}"
