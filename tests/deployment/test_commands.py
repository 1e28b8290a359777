"""The commands of compose file, image and manifests, outside of containers."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import psutil
import pytest
import yaml
from chaos import free_port, wait_for
from mlflow.tracking import MlflowClient

PASSWORD = "a password for a test"


def end(process: subprocess.Popen) -> None:
    """End a process and all it started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        _, alive = psutil.wait_procs([psutil.Process(process.pid), *children], timeout=30)
        for left in alive:
            left.kill()
    process.wait(timeout=30)


@pytest.fixture(scope="module")
def services(root) -> dict[str, dict]:
    """The compose file's services, variables replaced by their defaults."""
    text = (root / "docker/compose.yaml").read_text()
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    return yaml.safe_load(re.sub(r"\$\{(\w+):\?[^}]*\}", r"\1", text))["services"]


# --- ray start -----------------------------------------------------------------------------------


def parse_ray_start(arguments: list[str]) -> dict:
    """What `ray start` makes of its arguments; a wrong one raises."""
    from ray.scripts.scripts import start

    return start.make_context("start", list(arguments)).params


@pytest.mark.parametrize("name", ["head", "worker", "gpu"])
def test_ray_understands_the_compose_files_start_commands(services, name):
    program, subcommand, *arguments = services[name]["command"]
    assert (program, subcommand) == ("ray", "start")
    understood = parse_ray_start(arguments)
    assert understood["block"]
    assert understood["head"] == (name == "head")
    assert (
        f":{understood['dashboard_agent_listen_port']}/"
        in (services[name]["environment"]["HEALTH_URL"])
    )


def test_ray_understands_the_manifests_start_parameters(root):
    spec = yaml.safe_load((root / "docker/kuberay/raycluster.yaml").read_text())["spec"]
    for group in [spec["headGroupSpec"], *spec["workerGroupSpecs"]]:
        given = group["rayStartParams"]
        line = " ".join(f"--{name}={value}" for name, value in given.items())
        understood = parse_ray_start(shlex.split(line))
        assert {name.replace("-", "_") for name in given} <= set(understood)


# --- pld-ray -------------------------------------------------------------------------------------


def test_the_jobs_entry_point_is_a_sweep_that_can_be_read(root):
    from pld_ray.sweep.config import load_sweep

    job = yaml.safe_load((root / "docker/kuberay/rayjob.yaml").read_text())["spec"]
    program, command, *arguments = shlex.split(job["entrypoint"])
    assert (program, command) == ("pld-ray", "sweep")
    arguments = [word.replace("/opt/pld-ray", str(root)) for word in arguments]
    assert str(load_sweep(arguments).config.folder()).startswith("/runs/")


# --- health --------------------------------------------------------------------------------------


def test_the_images_health_check_asks_the_url_that_it_was_given(root):
    if shutil.which("wget") is None:
        pytest.skip("wget is not installed; the image has it")
    text = (root / "docker/Dockerfile").read_text()
    command = yaml.safe_load(re.search(r"HEALTHCHECK.*?CMD (\[.*?\])$", text, re.S | re.M)[1])

    def status(url):
        return subprocess.run(command, env={**os.environ, "HEALTH_URL": url}).returncode

    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"],
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: status(f"http://127.0.0.1:{port}/") == 0, "a healthy answer")
        assert status(f"http://127.0.0.1:{port}/no-such-page") != 0
    finally:
        end(server)
    assert status(f"http://127.0.0.1:{port}/") != 0
    assert status("") == 0


# --- tracking server on PostgreSQL ---------------------------------------------------------------


@pytest.fixture(scope="module")
def database():
    """A PostgreSQL server of its own; its PG* variables."""
    tools = {name: shutil.which(name) for name in ("initdb", "postgres", "pg_isready", "createdb")}
    if None in tools.values():
        pytest.skip(f"not installed: {', '.join(n for n, path in tools.items() if path is None)}")
    user = "postgres" if os.geteuid() == 0 else None  # it does not run as root
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
    if user is not None:
        try:
            shutil.chown(folder, user)
        except LookupError:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    (folder / "password").write_text(PASSWORD)
    (folder / "password").chmod(0o644)
    port = free_port()
    make = [tools["initdb"], "--pgdata", folder / "data", "--username=mlflow", "--no-sync"]
    make += ["--auth=scram-sha-256", f"--pwfile={folder / 'password'}"]
    subprocess.run(make, user=user, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    settings = [f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={folder}"]
    serve = [tools["postgres"], "-D", folder / "data", "-F"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [*serve, *(word for setting in settings for word in ("-c", setting))],
            user=user,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    variables = {"PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "mlflow"}
    variables["PGPASSWORD"] = PASSWORD
    environment = {**os.environ, **variables}
    try:
        wait_for(
            lambda: (
                subprocess.run([tools["pg_isready"], "--quiet"], env=environment).returncode == 0
            ),
            "the database's start",
        )
        subprocess.run([tools["createdb"], "mlflow"], env=environment, check=True)
        yield variables
    finally:
        end(server)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def tracking_server(root, services, database, tmp_path_factory):
    """The compose file's tracking server; its address."""
    pytest.importorskip("psycopg", reason="psycopg (docker/requirements.txt) is missing")
    pytest.importorskip("flask_wtf", reason="flask-wtf (docker/requirements.txt) is missing")
    folder = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    here = {
        "--host=0.0.0.0": "--host=127.0.0.1",
        "--port=5000": f"--port={port}",
        "--workers=2": "--workers=1",
        "--artifacts-destination=/artifacts": f"--artifacts-destination={folder}",
    }
    command = [
        here.get(word, word).replace(":5000", f":{port}") for word in services["mlflow"]["command"]
    ]
    assert set(here) <= set(services["mlflow"]["command"])
    environment = {
        **os.environ,
        **database,
        "MLFLOW_AUTH_CONFIG_PATH": str(root / "docker/mlflow_auth.ini"),
        "MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD,
        "MLFLOW_FLASK_SERVER_SECRET_KEY": PASSWORD,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    given = set(services["mlflow"]["environment"]) - {"HEALTH_URL"}
    assert given <= set(environment)
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", *command], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    address = f"http://127.0.0.1:{port}"

    def answers():
        assert server.poll() is None, (folder / "log").read_text()[-3000:]
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{address}/health", timeout=5).status == 200
        return False

    try:
        wait_for(answers, "the tracking server's start")
        yield address
    finally:
        end(server)


@pytest.mark.chaos
def test_the_compose_files_tracking_server_keeps_runs_in_postgresql(
    tracking_server, database, tmp_path, monkeypatch
):
    import psycopg

    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{tracking_server}/api/2.0/mlflow/experiments/search?max_results=1")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    client = MlflowClient(tracking_server)
    run = client.create_run(client.create_experiment("pld-ray"))
    client.log_metric(run.info.run_id, "eval/residual_success", 0.5, step=1000)
    (tmp_path / "config.yaml").write_text("seed: 0")
    client.log_artifact(run.info.run_id, str(tmp_path / "config.yaml"))
    kept = pathlib.Path(client.download_artifacts(run.info.run_id, "config.yaml", str(tmp_path)))
    assert kept.read_text() == "seed: 0"
    with (
        contextlib.closing(
            psycopg.connect(
                host=database["PGHOST"],
                port=database["PGPORT"],
                user="mlflow",
                password=PASSWORD,
                dbname="mlflow",
            )
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("select key, value, step from metrics")
        assert cursor.fetchall() == [("eval/residual_success", 0.5, 1000)]
        cursor.execute("select username, is_admin from users")
        assert cursor.fetchall() == [("admin", True)]
