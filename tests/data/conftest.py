import aloha_files
import pytest

from pld_ray.data.aloha_file import Layout
from pld_ray.data.aloha_part import Settings
from pld_ray.data.conversion import convert


@pytest.fixture(scope="session")
def convert_folder():
    """Convert in this process; keywords are settings."""

    def run(folder, root, *, layout=None, skip_bad=False, num_workers=1, **settings):
        made = Settings(**{"repo_id": "lab/fold", "task": "fold the box", **settings})
        return convert(folder, root, made, layout or Layout(), num_workers, skip_bad)

    return run


@pytest.fixture(scope="session")
def recordings(tmp_path_factory):
    """Two successes and a failure, raw images."""
    return aloha_files.write_folder(tmp_path_factory.mktemp("recordings"))


@pytest.fixture(scope="session")
def dataset_root(recordings, convert_folder, tmp_path_factory):
    """The recordings as a dataset; do not write there."""
    root = tmp_path_factory.mktemp("converted") / "fold"
    convert_folder(recordings, root)
    return root
