import pytest
from sharded_data import write_dataset


@pytest.fixture
def small_dataset(tmp_path):
    root = tmp_path / "small"
    return root, write_dataset(root, (12, 3, 9, 20, 7), failures=(2,))
