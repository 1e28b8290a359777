"""`README.md` of an exported policy, as the hub shows it: what it is, its ancestors, its use."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from huggingface_hub import ModelCardData

from pld_ray.plugin.policy_folder import RESIDUAL
from pld_ray.policies.checkpoint import CONFIG, EXPORTED
from pld_ray.runs.layout import read_json
from pld_ray.sharded.policy_folder import PROVENANCE_FILE

CARD = "README.md"
KINDS = {
    RESIDUAL: "A base policy and a residual that corrects each of its actions, learnt by "
    "reinforcement learning. The base policy's files are in `base_policy`.",
    EXPORTED: "A flow over chunks of actions and the critics that choose the best of its draws, "
    "learnt by reinforcement learning (Q-chunking).",
}
"""Types of our own."""
PLUGIN = "LeRobot knows this type where pld-ray and its plugin `lerobot_policy_pld_ray` are."


def write_model_card(folder: pathlib.Path, environment: Sequence[str], results: str = "") -> None:
    """Describe the policy of a folder. Paths of this machine stay here, fingerprints do not.

    LeRobot's own card asks the hub, and states a licence that nobody has given.

    Args:
        folder: of a policy as LeRobot loads it.
        environment: flags that give `lerobot-eval` what it was trained in, where that is known.
        results: of an evaluation, in Markdown.
    """
    config = json.loads((folder / CONFIG).read_text())
    kind = config["type"]
    tags = sorted({"lerobot", "robotics", "pld-ray", kind})
    header = ModelCardData(library_name="lerobot", pipeline_tag="robotics", tags=tags).to_yaml()
    about = f"{KINDS[kind]} {PLUGIN}" if kind in KINDS else f"A LeRobot policy of type `{kind}`."
    if task := config.get("task"):
        about += f"\n\nIt was trained to: {task}"
    parts = [f"---\n{header}\n---", f"# {kind}", about, "## Inputs and outputs", features(config)]
    if made_of := [*ancestors(config, read_json(folder / PROVENANCE_FILE))]:
        parts += ["## Made of", "\n".join(made_of)]
    if results:
        parts += ["## Results", results.strip()]
    if environment:
        command = f"lerobot-eval --policy.path=DIR {' '.join(environment)}"
        parts += ["## Use", f"```\n{command}\n```"]
    (folder / CARD).write_text("\n\n".join(parts) + "\n")


def features(config: Mapping[str, Any]) -> str:
    """What the policy reads and gives, as a table."""
    rows = ["| | type | shape |", "|---|---|---|"]
    for name, feature in {**config["input_features"], **config["output_features"]}.items():
        rows.append(f"| `{name}` | {feature['type']} | {tuple(feature['shape'])} |")
    return "\n".join(rows)


def ancestors(config: Mapping[str, Any], provenance: Mapping[str, Any]) -> Iterator[str]:
    """A line for each policy, dataset and run that it came from."""
    base = provenance.get("base_policy") or config.get("base_policy") or {}
    if "fingerprint" in base:
        yield f"- base policy, fingerprint `{base['fingerprint']}`"
    for dataset in provenance.get("datasets", ()):
        name = pathlib.Path(dataset["path"]).name
        yield f"- dataset {name}, `{dataset['identity']}`"
    for run in provenance.get("distilled_from", ()):
        name = pathlib.Path(run["path"]).name
        yield f"- residual {name}, checkpoint {run['checkpoint']}, checksum `{run['checksum']}`"
    if "updates" in provenance:
        yield f"- {provenance['updates']} updates, seed {provenance['seed']}"
