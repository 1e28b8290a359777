"""`pld-ray acrlpd`."""

from __future__ import annotations

import argparse

from pld_ray.cli import train
from pld_ray.cli.arguments import Parser

CONFIG_CLASS = "ACRLPDTrainConfig"


def parser() -> Parser:
    """The arguments of the command, those of `pld-ray train`."""
    return train.parser("acrlpd", CONFIG_CLASS)


def run(args: argparse.Namespace) -> int:
    """Train, or print or check a configuration."""
    return train.run(args, CONFIG_CLASS)
