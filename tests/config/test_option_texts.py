"""What the texts of options refer to exists, and the page names all paths that machines share."""

from __future__ import annotations

import pathlib
import re

import pytest

from pld_ray.config import TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.config.classifier import ClassifierConfig
from pld_ray.config.distill import DistillConfig
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.options import fields_of

GROUPS = [field.key for field in fields_of(TrainConfig) if field.is_group]
OPTIONS = {field.key for c in (TrainConfig, ACRLPDTrainConfig) for field in fields_of(c)}
NEED_NO_SHARED_FOLDER = {
    "env.assets",  # may lie elsewhere on each node
    "env.arm.model",  # docs/human.md
    "placement.working_dir",  # is what Ray copies
}


@pytest.mark.parametrize(
    "config", [TrainConfig, ACRLPDTrainConfig, ClassifierConfig, DistillConfig, FinetuneConfig]
)
def test_an_option_that_a_text_names_exists(config):
    named = re.compile(rf"\b(?:{'|'.join(GROUPS)})\.[a-z_]+\b")
    for field in fields_of(config):
        for name in named.findall(field.option.meaning):
            assert name in OPTIONS, f"{config.__name__}.{field.key} speaks of {name}"


def test_the_page_names_every_path_that_machines_must_share():
    page = pathlib.Path(__file__).parents[2] / "docs/operations.md"
    section = page.read_text().split("\n## Storage\n")[1].split("\n\n")[0]
    for field in fields_of(TrainConfig):
        if field.is_group or field.key in NEED_NO_SHARED_FOLDER:
            continue
        if field.option.path is not None:
            assert f"`{field.key}`" in section, field.key
