"""docker/kuberay: the manifests, against the fields of KubeRay's v1 API that they use.

No operator runs here. The schema below is closed: a field that it does not name is an error, so a
slip of the pen does not pass as something that the operator would ignore.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess

import jsonschema
import pytest
import ray
import yaml

TEXT, WHOLE, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}


def closed(required: str = "", **properties) -> dict:
    """An object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def list_of(items: dict) -> dict:
    return {"type": "array", "items": items, "minItems": 1}


def mapping_to(values: dict) -> dict:
    return {"type": "object", "additionalProperties": values}


QUANTITY = {"type": "string", "pattern": r"^\d+(\.\d+)?(m|[KMGT]i)?$"}
RESOURCES = closed("requests limits", requests=mapping_to(QUANTITY), limits=mapping_to(QUANTITY))
SECRET_KEY = closed("name key", name=TEXT, key=TEXT, optional=FLAG)
VARIABLE = {
    "oneOf": [
        closed("name value", name=TEXT, value=TEXT),
        closed("name valueFrom", name=TEXT, valueFrom=closed(secretKeyRef=SECRET_KEY)),
    ]
}
CONTAINER = closed(
    "name image resources securityContext",
    name=TEXT,
    image=TEXT,
    imagePullPolicy={"enum": ["IfNotPresent", "Always"]},
    ports=list_of(closed("name containerPort", name=TEXT, containerPort=WHOLE)),
    env=list_of(VARIABLE),
    securityContext=closed(
        "allowPrivilegeEscalation capabilities",
        allowPrivilegeEscalation={"const": False},
        capabilities=closed("drop", drop={"const": ["ALL"]}),
    ),
    resources=RESOURCES,
    volumeMounts=list_of(closed("name mountPath", name=TEXT, mountPath=TEXT)),
)
VOLUME = closed(
    "name",
    name=TEXT,
    persistentVolumeClaim=closed("claimName", claimName=TEXT),
    emptyDir=closed(medium={"const": "Memory"}, sizeLimit=QUANTITY),
)
POD = closed(
    "containers securityContext",
    automountServiceAccountToken=FLAG,
    securityContext=closed(
        "runAsNonRoot seccompProfile",
        runAsNonRoot={"const": True},
        runAsUser=WHOLE,
        runAsGroup=WHOLE,
        fsGroup=WHOLE,
        seccompProfile=closed("type", type={"const": "RuntimeDefault"}),
    ),
    tolerations=list_of(
        closed(
            "key operator effect",
            key=TEXT,
            operator={"enum": ["Equal", "Exists"]},
            value=TEXT,
            effect={"enum": ["NoSchedule", "NoExecute", "PreferNoSchedule"]},
        )
    ),
    terminationGracePeriodSeconds=WHOLE,
    containers=list_of(CONTAINER),
    volumes=list_of(VOLUME),
)
TEMPLATE = closed("spec", spec=POD)
CLUSTER = closed(
    "rayVersion authOptions headGroupSpec workerGroupSpecs",
    rayVersion=TEXT,
    authOptions=closed("mode", mode={"const": "token"}),
    enableInTreeAutoscaling=FLAG,
    autoscalerOptions=closed(
        version={"enum": ["v1", "v2"]},
        upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]},
        idleTimeoutSeconds=WHOLE,
        resources=RESOURCES,
    ),
    headGroupSpec=closed(
        "rayStartParams template", rayStartParams=mapping_to(TEXT), template=TEMPLATE
    ),
    workerGroupSpecs=list_of(
        closed(
            "groupName minReplicas maxReplicas rayStartParams template",
            groupName=TEXT,
            replicas=WHOLE,
            minReplicas=WHOLE,
            maxReplicas=WHOLE,
            rayStartParams=mapping_to(TEXT),
            template=TEMPLATE,
        )
    ),
)
JOB = closed(
    "entrypoint rayClusterSpec",
    entrypoint=TEXT,
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"]},
    submitterConfig=closed(backoffLimit=WHOLE),
    backoffLimit=WHOLE,
    activeDeadlineSeconds=WHOLE,
    shutdownAfterJobFinishes=FLAG,
    ttlSecondsAfterFinished=WHOLE,
    rayClusterSpec=CLUSTER,
)

SELECTING_JOB = closed(
    "entrypoint clusterSelector",
    entrypoint=TEXT,
    entrypointNumCpus={"type": "number", "minimum": 0},
    clusterSelector=closed("ray.io/cluster", **{"ray.io/cluster": TEXT}),
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"]},
    submitterConfig=closed(backoffLimit=WHOLE),
)
"""A job on a cluster that stays; it is not shut down with the job."""


@pytest.fixture(scope="module")
def manifests(root) -> dict[str, dict]:
    folder = root / "docker/kuberay"
    return {path.stem: yaml.safe_load(path.read_text()) for path in folder.glob("*.yaml")}


@pytest.fixture(scope="module")
def cluster(manifests) -> dict:
    return manifests["raycluster"]["spec"]


@pytest.fixture(scope="module")
def groups(cluster) -> dict[str, dict]:
    return {group["groupName"]: group for group in cluster["workerGroupSpecs"]}


@pytest.mark.parametrize(
    ("name", "kind", "schema"),
    [
        ("raycluster", "RayCluster", CLUSTER),
        ("rayjob", "RayJob", JOB),
        ("rayjob_finetune", "RayJob", SELECTING_JOB),
        ("rayjob_distill", "RayJob", SELECTING_JOB),
    ],
)
def test_a_manifest_has_the_fields_of_its_kind_and_no_others(manifests, name, kind, schema):
    manifest = manifests[name]
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", kind)
    jsonschema.Draft202012Validator(schema).validate(manifest["spec"])


def test_the_jobs_cluster_is_the_cluster(manifests, cluster):
    assert manifests["rayjob"]["spec"]["rayClusterSpec"] == cluster


@pytest.mark.parametrize("command", ["finetune", "distill"])
def test_the_cluster_can_hold_the_learners_of_a_job(command, manifests, groups, capsys):
    from pld_ray.cli import main

    job = manifests[f"rayjob_{command}"]["spec"]
    name = manifests["raycluster"]["metadata"]["name"]
    assert job["clusterSelector"] == {"ray.io/cluster": name}
    program, *words = shlex.split(job["entrypoint"])
    assert (program, words[0]) == ("pld-ray", command)
    assert main([*words, "--print_config"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    learners = config["learners"]
    assert learners["num_learners"] <= groups["learning"]["maxReplicas"]
    assert learners["num_gpus_per_learner"] == 1
    assert config["placement"] | {"env_vars": {}} == {
        "learner": {"learning": 1.0},
        "env_vars": {},
        "working_dir": None,
        "check": False,
    }


def test_the_operator_is_told_the_version_of_ray_that_the_image_has(root, cluster):
    assert cluster["rayVersion"] == ray.__version__
    assert f"ray=={ray.__version__}" in (root / "requirements.lock").read_text().splitlines()


def test_the_head_takes_no_tasks(cluster):
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_the_groups_have_the_resources_that_placement_asks_for(groups):
    def resources(name):
        # the operator pastes the value into a shell command
        (word,) = shlex.split(groups[name]["rayStartParams"]["resources"])
        return json.loads(word)

    def gpus(name):
        limits = groups[name]["template"]["spec"]["containers"][0]["resources"]["limits"]
        return limits.get("nvidia.com/gpu", "0")

    assert resources("simulation") == {"simulation": 8}
    assert resources("learning") == {"learning": 1}
    assert {name: gpus(name) for name in groups} == {
        "trials": "0",
        "simulation": "0",
        "learning": "1",
    }


def test_only_runners_can_be_placed_on_spot_nodes(groups):
    def tolerates_spot(name):
        tolerations = groups[name]["template"]["spec"].get("tolerations", [])
        return "spot" in {t["key"] for t in tolerations}

    assert [name for name in groups if tolerates_spot(name)] == ["simulation"]
    assert groups["simulation"]["rayStartParams"]["num-cpus"] == "0"


def test_every_pod_sees_the_shared_folder(cluster, manifests):
    pods = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for pod in (p["template"]["spec"] for p in pods):
        mounts = {m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
        claims = {v["name"]: v.get("persistentVolumeClaim") for v in pod["volumes"]}
        assert set(mounts) == set(claims)
        assert mounts["runs"] == "/runs"
        assert claims["runs"]["claimName"] == manifests["storage"]["metadata"]["name"]
    assert manifests["storage"]["spec"]["accessModes"] == ["ReadWriteMany"]


@pytest.mark.parametrize("name", ["raycluster", "rayjob"])
def test_rays_object_store_fits_into_shared_memory(name, manifests):
    """Else Ray puts all of it into /tmp, on the disk."""
    spec = manifests[name]["spec"]
    spec = spec.get("rayClusterSpec", spec)
    for pod in [spec["headGroupSpec"], *spec["workerGroupSpecs"]]:
        volumes = {v["name"]: v for v in pod["template"]["spec"]["volumes"]}
        shared = int(volumes["shm"]["emptyDir"]["sizeLimit"].removesuffix("Gi")) * 2**30
        assert 0 < int(pod["rayStartParams"].get("object-store-memory", shared)) < shared


def test_secrets_come_from_a_secret(root):
    for path in (root / "docker/kuberay").glob("*.yaml"):
        for name, where in re.findall(
            r"name: (\w*(?:PASSWORD|TOKEN)\w*)(.*\n.*)", path.read_text()
        ):
            assert "secretKeyRef" in where, f"{path}: {name}"


def test_kustomize_builds_what_is_applied_and_names_the_image(root, tmp_path):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    folder = tmp_path / "kuberay"
    shutil.copytree(root / "docker/kuberay", folder)
    file = folder / "kustomization.yaml"
    file.write_text(file.read_text().replace("newName: pld-ray", "newName: registry/mine"))
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    assert {b["kind"] for b in built} == {"RayCluster", "NetworkPolicy", "PersistentVolumeClaim"}
    assert set(re.findall(r"image: (\S+)", done.stdout)) == {"registry/mine:0.1.0"}
