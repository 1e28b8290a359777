"""Every test process has Ray sessions of its own, so that files can run side by side."""

import os
import tempfile

import pytest

# before any Ray process: clusters find each other through a file in this folder
os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="ray")


@pytest.fixture(scope="module")
def ray_cluster(request):
    """A local Ray; its workers can import what lies beside the test."""
    import ray

    ray.init(
        "local",
        num_cpus=6,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": str(request.path.parent)}},
    )
    yield
    ray.shutdown()
