"""torch.compile for the networks of the update."""

from __future__ import annotations

from typing import Any

import torch


def compile_networks(networks: Any, backend: str) -> None:
    """Compile what critics and actor compute; parameters and their names stay as they are.

    Args:
        networks: `ResidualNetworks`, or an object with its attributes; changed in place.
        backend: of torch.compile.
    """
    networks.actor.compile(backend=backend)
    for critic in (networks.critic, networks.target_critic):
        critic.outputs = torch.compile(critic.outputs, backend=backend)
        critic.otf_outputs = torch.compile(critic.otf_outputs, backend=backend)
