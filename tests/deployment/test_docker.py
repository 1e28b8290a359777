"""docker/: what can be known of image, compose file and manifests without an engine."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml

SECRETS = {
    "RAY_AUTH_TOKEN",
    "POSTGRES_PASSWORD",
    "MLFLOW_AUTH_ADMIN_PASSWORD",
    "MLFLOW_FLASK_SERVER_SECRET_KEY",
    "MLFLOW_TRACKING_PASSWORD",
    "HF_TOKEN",
}


@pytest.fixture(scope="module")
def dockerfile(root) -> str:
    """The Dockerfile, continued lines joined."""
    return re.sub(r"\\\n\s*", " ", (root / "docker/Dockerfile").read_text())


@pytest.fixture(scope="module")
def compose(root) -> dict:
    return yaml.safe_load((root / "docker/compose.yaml").read_text())


@pytest.fixture(scope="module")
def example(root) -> dict[str, str]:
    """docker/.env.example as variables."""
    lines = (root / "docker/.env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


# --- the image -----------------------------------------------------------------------------------


def test_what_the_image_copies_exists_and_is_not_ignored(root, dockerfile):
    sources = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE)
    sources = [source for line in sources for source in line.split()]
    assert sources
    kept = [
        line[1:] for line in (root / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    for source in sources:
        assert (root / source).exists(), source
        assert any(source == k or source.startswith(f"{k}/") for k in kept), source


def test_the_image_runs_as_an_ordinary_user(dockerfile):
    assert re.findall(r"^USER (.+)$", dockerfile, re.MULTILINE) == ["1000:1000"]


def test_no_secret_is_built_in(dockerfile):
    names = set(re.findall(r"^(?:ARG|ENV) .*", dockerfile, re.MULTILINE))
    assert not [line for line in names if any(secret in line for secret in SECRETS)]


def test_the_cpu_image_leaves_cuda_out(root, tmp_path):
    for name in ("docker/install.sh", "requirements.lock", "docker/requirements.txt"):
        (tmp_path / name.rpartition("/")[2]).write_bytes((root / name).read_bytes())

    def install(**variables):
        return subprocess.run(
            ["sh", str(tmp_path / "install.sh"), str(tmp_path / "venv")],
            env={"PATH": "/usr/bin:/bin", "PRINT_ONLY": "1", **variables},
            capture_output=True,
            text=True,
        )

    both = install(ACCELERATOR="cuda").stdout.splitlines()
    cpu = install(ACCELERATOR="cpu", TORCH_INDEX_URL="an index").stdout.splitlines()
    assert [line for line in both if line.startswith("nvidia-")]
    assert not [line for line in cpu if line.startswith(("nvidia-", "cuda-", "triton"))]
    assert {line.split("==")[0] for line in both} - {line.split("==")[0] for line in cpu} >= {
        "triton"
    }
    assert [line for line in cpu if line.startswith("torch==")]
    refused = install(ACCELERATOR="cpu")
    assert refused.returncode == 2
    assert "TORCH_INDEX_URL" in refused.stderr
    assert install(ACCELERATOR="tpu").returncode == 2


def test_the_images_own_requirements_do_not_contradict_the_lock(root):
    def pins(name):
        lines = (root / name).read_text().splitlines()
        return dict(line.split("==") for line in lines if line and not line.startswith("#"))

    lock, own = pins("requirements.lock"), pins("docker/requirements.txt")
    assert {name: lock[name] for name in own if name in lock} == {
        name: version for name, version in own.items() if name in lock
    }


# --- compose -------------------------------------------------------------------------------------


def test_the_compose_file_follows_the_compose_specification(root):
    pytest.importorskip("check_jsonschema", reason="check-jsonschema is a development dependency")
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema=vendor.compose-spec"]
    done = subprocess.run([*check, root / "docker/compose.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rays_object_store_fits_into_shared_memory(compose):
    """Else Ray puts all of it into /tmp, on the disk."""
    nodes = {
        name: service
        for name, service in compose["services"].items()
        if service.get("command", [])[:2] == ["ray", "start"]
    }
    assert set(nodes) == {"head", "worker", "gpu"}
    for name, node in nodes.items():
        options = dict(word.split("=", 1) for word in node["command"] if "=" in word)
        shared = int(node["shm_size"].removesuffix("gb")) * 2**30
        assert 0 < int(options.get("--object-store-memory", shared)) < shared, name


def test_every_published_port_is_bound_to_loopback(compose):
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_tracking_server_lets_in_the_tunnels_of_the_operations_page(root, compose):
    page = re.findall(r'--allowed-hosts="(.*?)"', (root / "docs/operations.md").read_text())
    given = dict(o.split("=", 1) for o in compose["services"]["mlflow"]["command"] if "=" in o)
    assert given["--allowed-hosts"] == page[0].replace("$HEAD:$MLFLOW_PORT", "mlflow:5000")
    assert given["--cors-allowed-origins"] == "http://mlflow:5000"


def test_every_variable_of_the_compose_file_is_in_the_example(root, example):
    text = (root / "docker/compose.yaml").read_text()
    assert set(re.findall(r"\$\{(\w+)", text)) == set(example)


def test_secrets_have_no_default_and_no_value(root, example):
    text = (root / "docker/compose.yaml").read_text()
    for name in SECRETS:
        assert example[name] == ""
        uses = re.findall(rf"\$\{{{name}(.*?)}}", text)
        assert uses
        assert all(use.startswith(":?") or use == ":-" for use in uses)


def test_every_service_is_limited_healthy_and_without_rights_it_does_not_need(compose):
    for name, service in compose["services"].items():
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}, name
        assert "healthcheck" in service or service["environment"]["HEALTH_URL"], name
        if name != "postgres":  # its entry point changes the owner of its data
            assert service["cap_drop"] == ["ALL"], name
