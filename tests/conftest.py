"""Every test process has Ray sessions of its own, so that files can run side by side."""

import gc
import inspect
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import xdist.remote
from hypothesis import settings

settings.register_profile("pld_ray", deadline=None)  # what is slow is no failure
settings.load_profile("pld_ray")
# before any Ray process: clusters find each other through a file in this folder
os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="ray")
# workers that a cluster starts in advance have another environment than ours, and are never used
os.environ["RAY_prestart_worker_first_driver"] = "0"  # noqa: SIM112 (its name)

# RLlib's connectors ask for the whole stack, and frames of no module are looked for in all modules,
# 9 ms each: those of pytest-xdist's processes are known to have none
for file in ("<string>", xdist.remote.__file__):
    inspect.modulesbyfile[file] = ""

SHARING_RAY = pytest.StashKey[set[Path]]()
LONGEST_FILES = (
    "test_train.py",
    "test_algorithm.py",
    "test_offline_stage.py",
    "test_asynchronous.py",
    "test_sweep.py",
    "test_pool.py",
    "test_collect.py",
    "test_modeling_pld.py",
    "test_closing.py",
    "test_faults.py",
    "test_interventions.py",
    "test_actor.py",
    "test_mlflow_server.py",
    "test_experts.py",
    "test_registry.py",
    "test_distill.py",
    "test_acrlpd_run.py",
    "test_phases.py",
    "test_report.py",
    "test_acrlpd.py",
    "test_requests.py",
    "test_libero_env.py",
    "test_ranks.py",
    "test_chunked_ranks.py",
    "test_mlflow_run.py",
    "test_update.py",
)


def pytest_collection_modifyitems(session, items):
    """Files that share a Ray first, and of each kind the longest, so that at the end no process
    waits for the other's last one."""
    order = {name: i for i, name in enumerate(LONGEST_FILES)}
    sharing = {item.path for item in items if "ray_cluster" in item.fixturenames}
    items.sort(key=lambda item: (item.path not in sharing, order.get(item.path.name, len(order))))
    session.config.stash[SHARING_RAY] = sharing


def pytest_collection_finish():
    """Collections of garbage pass over all that is imported by now: half a second each, and every
    simulator that is closed asks for one."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus):
    """What Ray logged is kept for whoever looks for the reason of a failure."""
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        shutil.rmtree(os.environ["RAY_TMPDIR"], ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def ray_of_other_files(request):
    """A file that does not share a Ray starts without one."""
    if "ray" in sys.modules and request.path not in request.config.stash[SHARING_RAY]:
        sys.modules["ray"].shutdown()


@pytest.fixture(scope="module")
def ray_cluster(request):
    """A local Ray for all files of this process that ask for one; its workers can import what lies
    beside the tests."""
    import ray

    if ray.is_initialized():
        return
    beside = os.pathsep.join(str(path) for path in request.config.getini("pythonpath"))
    ray.init(
        "local",
        num_cpus=6,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": beside}},
    )
