"""What tests of executors share."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What Gradweave logs, until it is taken out."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())
    logger = logging.getLogger("gradweave")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)
