"""A pytest plugin: run the test files in a random order, so that no file leans on another one's leftovers.

    pytest --order-seed 7      the order that the number 7 gives, the same each time
    pytest                     by name

The tests of a file keep their order. `make test SEED=7` repeats an order; CI draws a new one each time and prints it.
"""

from __future__ import annotations

import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order-seed", metavar="SEED", help="run the test files in the random order of this number")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With xdist each worker collects for itself: they agree because the order comes from the seed alone."""
    seed = config.getoption("--order-seed")
    if not seed:
        return
    files = sorted({item.nodeid.partition("::")[0] for item in items})
    random.Random(seed).shuffle(files)
    place = {file: number for number, file in enumerate(files)}
    items.sort(key=lambda item: place[item.nodeid.partition("::")[0]])


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("--order-seed")
    return f"order of the test files: seed {seed} (SEED={seed} repeats it)" if seed else None
