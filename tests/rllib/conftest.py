"""What the tests of the algorithm share."""

import pytest
from point_demonstrations import record


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


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    return record(tmp_path_factory.mktemp("demonstrations") / "dataset")
