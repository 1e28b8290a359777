from pathlib import Path

import pytest
from policy_fixtures import (  # noqa: F401
    act_directory,
    load_tiny,
    make_observations,
    tiny_directory,
)


@pytest.fixture(scope="module")
def ray_session():
    """One cluster a file, as the other files of the process have theirs.

    Its workers can import what lies beside the tests.
    """
    import ray

    folders = (Path(__file__).parent, Path(__file__).parents[1] / "policies")
    ray.init(
        "local",
        num_cpus=4,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": ":".join(map(str, folders))}},
    )
    yield
    ray.shutdown()
