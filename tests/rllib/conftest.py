"""What the tests of the algorithm share."""

import pytest


@pytest.fixture
def build():
    """Builds algorithms and stops them at the end of the test."""
    built = []

    def make(config):
        algorithm = config.build_algo()
        built.append(algorithm)
        return algorithm

    yield make
    for algorithm in built:
        algorithm.stop()
