"""`pld-ray actor`."""

from __future__ import annotations

import argparse
import os
import re

from pld_ray.cli.arguments import Parser, whole_number

RESOURCES = "{robot: 1}"


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser(
        "actor",
        "Lends this machine to a learner: it joins the Ray of `pld-ray train --ray_port=PORT` with "
        "the resources that the learner's --placement.env_runner asks for, so that the environment "
        "runs here. It may start before the learner, go at any moment and come back. Experimental: "
        "run on one machine, with several nodes; with an arm that MuJoCo moves and a keyboard, and "
        "never with a real one.",
    )
    parser.value("address", "HOST:PORT", "of the learner's Ray", required=True, read=host_and_port)
    parser.value(
        "resources",
        "{NAME: N}",
        f"what this machine has; {RESOURCES} unless given",
        default=RESOURCES,
    )
    parser.value("num_cpus", "N", "cores that Ray may use; all unless given", read=whole_number)
    return parser


def run(args: argparse.Namespace) -> int:
    """Join, until a signal ends it."""
    resources = amounts(args.resources)
    from pld_ray.jobs.actor import act

    act(args.address, resources, args.num_cpus or os.cpu_count() or 1)
    return 0


def host_and_port(text: str) -> str:
    """An address."""
    if re.fullmatch(r"[\w.-]+:[0-9]{1,5}", text) is None:
        raise ValueError("HOST:PORT, such as 10.0.0.1:6380")
    return text


def amounts(text: str) -> dict[str, float]:
    """Custom resources, as `placement.env_runner` takes them."""
    from pld_ray.config import ConfigError, TrainConfig
    from pld_ray.config.file import load_config

    try:
        config = load_config(TrainConfig, [f"--placement.env_runner={text}"])
    except ConfigError as error:
        raise ConfigError(str(error).replace("placement.env_runner", "resources")) from None
    return dict(config.placement.env_runner)
