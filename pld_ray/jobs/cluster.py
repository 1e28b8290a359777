"""The Ray cluster of a run: joining or starting it, and whether the run fits."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.jobs.cluster_address import check_answers, last_line, no_cluster
from pld_ray.jobs.elsewhere import other_cluster
from pld_ray.jobs.placing import Resources, unplaced, without_marks

Asked = list[tuple[str, Resources]]
"""Role and resources of each process."""
START_ATTEMPTS = 3
TOO_SLOW = "timed out during startup"
GCS_PORT = "RAY_GCS_SERVER_PORT"
LOOK_S = 1.0
"""Between two looks for a node that is to join."""


def quiet_ray() -> None:
    """Hold back what Ray logs below an error; `log_level` alone leaves deprecations of its own."""
    for name in ("ray", "ray.rllib", "ray.tune", "ray._common"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextlib.contextmanager
def closed_stderr() -> Iterator[None]:
    """Ray's core announces on stderr that it has read RAY_BACKEND_LOG_LEVEL: of no use to anyone.

    Errors of the start are exceptions, and not lost.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextlib.contextmanager
def without_hangups() -> Iterator[None]:
    """Processes begun inside outlive the terminal's end, as long as this one, which saves then."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_ray(
    config: TrainConfig | FinetuneConfig, ray_address: str | None = None, asked: Asked | None = None
) -> bool:
    """Join the cluster that `ray_address`, the configuration or RAY_ADDRESS names, or start one.

    Args:
        config: of a run.
        ray_address: goes before what the configuration and RAY_ADDRESS name.
        asked: what is going to run; None is `demands` of the configuration.

    Returns:
        Whether this process started or joined Ray and has to leave it.

    Raises:
        ConfigError: no cluster answers at the address.
    """
    if ray.is_initialized():
        return False
    address = other_cluster(config, ray_address)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    runtime_env: dict[str, Any] = {}
    if config.placement.env_vars:
        runtime_env["env_vars"] = dict(config.placement.env_vars)
    if config.placement.working_dir is not None:
        runtime_env["working_dir"] = config.placement.working_dir
    if runtime_env:
        quiet["runtime_env"] = runtime_env
    if address:
        join_cluster(address, **quiet)
        return True
    asked = demands(config) if asked is None else asked
    needed = sum(r.get("CPU", 0.0) for _, r in asked)
    custom: Counter[str] = Counter()
    port = config.ray_port if isinstance(config, TrainConfig) else None
    for role, r in asked:
        if role != "env runner" or port is None:  # else of those who join
            custom.update({k: v for k, v in r.items() if k not in ("CPU", "GPU")})
    with gcs_port(port):
        start_local(
            num_cpus=max(os.cpu_count() or 1, int(needed + 0.999)),
            resources=dict(custom) or None,
            **quiet,
        )
    return True


@contextlib.contextmanager
def running_ray(
    config: TrainConfig | FinetuneConfig, ray_address: str | None = None, asked: Asked | None = None
) -> Iterator[None]:
    """Ray runs inside; arguments and errors are those of `start_ray`."""
    own_ray = start_ray(config, ray_address, asked)
    try:
        yield
    finally:
        if own_ray:
            ray.shutdown()


def join_cluster(address: str, **arguments: Any) -> None:
    """`ray.init` at an address.

    Raises:
        ConfigError: no cluster answers there.
    """
    with closed_stderr():
        check_answers(address)
    try:
        with closed_stderr():
            ray.init(address=address, **arguments)
    except Exception as error:
        ray.shutdown()
        raise ConfigError(cluster_refusal(address, error)) from error


def start_local(**arguments: Any) -> None:
    """`ray.init` of a Ray of this process's own, not a cluster that happens to run here.

    Ray gives its node 30 s, which a machine that is busy now may exceed: it is tried again.

    Raises:
        ConfigError: it did not start.
    """
    for attempt in range(START_ATTEMPTS):
        try:
            with closed_stderr(), without_hangups():
                ray.init("local", include_dashboard=False, **arguments)
        except Exception as error:  # of every kind, a bare one for a start that takes too long
            ray.shutdown()
            if TOO_SLOW in str(error) and attempt + 1 < START_ATTEMPTS:
                logging.getLogger("pld_ray").warning("Ray has not started in time: once more")
                continue
            home = os.path.expanduser("~")
            if str(getattr(error, "filename", None)).startswith(home):
                see = f"set HOME ({home}) to a folder that can be written"
            else:
                see = "see that it is not overloaded and that RAY_TMPDIR (/tmp) has room"
            raise ConfigError(
                f"Ray did not start on this machine ({last_line(error)}): {see}, then start "
                "again, or join a running cluster with --ray_address"
            ) from error
        else:
            return


@contextlib.contextmanager
def gcs_port(port: int | None) -> Iterator[None]:
    """Let Ray, which takes it from the environment alone, listen for nodes at this port.

    Raises:
        ConfigError: something else listens there.
    """
    if port is None:
        yield
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ConfigError(f"ray_port={port} cannot be used ({error.strerror})") from error
    os.environ[GCS_PORT] = str(port)
    try:
        yield
    finally:
        del os.environ[GCS_PORT]


def cluster_refusal(address: str, error: BaseException) -> str:
    """Why a cluster cannot be joined; one that wants a token looks like a slow or absent one."""
    reason = no_cluster(address, last_line(error))
    if os.environ.get("RAY_AUTH_MODE", "disabled") == "disabled" and has_auth_token():
        return (
            f"{reason}; it may be busy, or perhaps asks for a token: there is one here, which was "
            "not shown, as RAY_AUTH_MODE is not set; then set RAY_AUTH_MODE=token"
        )
    return reason


def has_auth_token() -> bool:
    """Whether Ray would find a token, in the places where it looks."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return True
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return pathlib.Path(named or "~/.ray/auth_token").expanduser().is_file()


def demands(config: TrainConfig | FinetuneConfig) -> Asked:
    """What each process of the run reserves: (role, resources), the driver first."""
    if isinstance(config, FinetuneConfig):
        return learner_demands(config)
    runners, policy, placement = config.runners, config.policy, config.placement
    runner_cpus = runners.num_cpus_per_env_runner
    asked: Asked = []
    for _ in range(runners.num_env_runners):
        asked.append(("env runner", {"CPU": runner_cpus, **placement.env_runner}))
    for _ in range(config.evaluation.num_env_runners):
        asked.append(("evaluation runner", {"CPU": runner_cpus, **placement.evaluation}))
    for _ in range(runners.num_learners):
        learner = {"CPU": 1.0, "GPU": runners.num_gpus_per_learner}
        asked.append(("learner", {**learner, **placement.learner}))
    if config.uses_pool:
        for _ in range(policy.max_replicas or policy.replicas):
            replica = {"CPU": policy.num_cpus_per_replica, "GPU": policy.num_gpus_per_replica}
            asked.append(("base-policy replica", {**replica, **placement.base_policy}))
    return [(role, {k: v for k, v in r.items() if v}) for role, r in asked]


def learner_demands(config: FinetuneConfig | ACRLPDTrainConfig) -> Asked:
    """What the learners of `learners` reserve, the fewest with which they start."""
    fewest = config.learners.min_learners or config.learners.num_learners
    return [("learner", learner_resources(config))] * fewest


def learner_resources(config: FinetuneConfig | ACRLPDTrainConfig) -> Resources:
    """What one of them reserves."""
    resources = {"CPU": 1.0, "GPU": config.learners.num_gpus_per_learner}
    return {k: v for k, v in {**resources, **config.placement.learner}.items() if v}


def check_cluster(config: TrainConfig | FinetuneConfig, asked: Asked | None = None) -> None:
    """Refuse a run whose processes can never be placed on the present cluster.

    Ray would wait for ever. Nothing is checked with `placement.check=false`, for clusters that grow
    on demand.

    Args:
        config: of a run.
        asked: what is going to run; None is `demands` of the configuration.

    Raises:
        ConfigError: what is short, on how many nodes of which size.
    """
    asked = demands(config) if asked is None else asked
    if isinstance(config, TrainConfig) and config.placement.check and config.placement.wait_s:
        wait_for_nodes(asked, config.placement.wait_s)
    check_fits(config, asked)


def wait_for_nodes(asked: Sequence[tuple[str, Resources]], timeout_s: float) -> None:
    """Wait until everything finds room, at most so long, and say for what."""
    deadline, said = time.monotonic() + timeout_s, ""
    while (left := unplaced(asked, alive_nodes())) and time.monotonic() < deadline:
        if (missing := in_words(left)) != said:
            said, address = missing, ray.get_runtime_context().gcs_address
            print(f"[starting] waiting for nodes with room for {missing}", flush=True)
            print(f"           they join with: pld-ray actor --address={address}", flush=True)
        time.sleep(LOOK_S)


def in_words(homeless: Sequence[tuple[str, Resources]]) -> str:
    """Roles and what each of them asks for."""
    counts = Counter(role for role, _ in homeless)
    wanted = dict(homeless)
    return ", ".join(
        f"{n} x {role} ({describe(wanted[role])})" for role, n in sorted(counts.items())
    )


def check_fits(
    config: TrainConfig | FinetuneConfig, asked: Sequence[tuple[str, Resources]]
) -> None:
    """Refuse what finds no room on the present nodes; see `check_cluster`."""
    if not config.placement.check:
        return
    nodes = alive_nodes()
    homeless = unplaced(asked, nodes)
    if not homeless:
        return
    have = "; ".join(describe(node) for node in nodes) or "no node"
    together = isinstance(config, FinetuneConfig | ACRLPDTrainConfig) and {
        role for role, _ in asked
    } == {"learner"}
    less = (
        "learners.num_learners, learners.min_learners, learners.num_gpus_per_learner, placement.*"
        if together
        else "runners.num_env_runners, runners.num_cpus_per_env_runner, "
        "runners.num_gpus_per_learner, policy.replicas, placement.*"
    )
    wait = "" if isinstance(config, FinetuneConfig) else "wait for them with --placement.wait_s=N, "
    raise ConfigError(
        f"the cluster is too small: no room for {in_words(homeless)}. Nodes: {have}. Ask for less "
        f"({less}), add nodes, {wait}or set --placement.check=false if the cluster grows on demand"
    )


def alive_nodes() -> list[Resources]:
    """The resources of each node that is there."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def describe(resources: Mapping[str, float]) -> str:
    """Resources in words."""
    shown = sorted(without_marks(resources).items())
    return ", ".join(f"{amount:g} {name}" for name, amount in shown) or "nothing"
