"""What `pld-ray actor` refuses, and how it waits; joining is in tests/chaos/test_actor.py."""

from __future__ import annotations

import socket

import pytest

from pld_ray.cli import main
from pld_ray.jobs.actor import wait_for


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--address is missing"),
        (["--address=10.0.0.1"], "must be HOST:PORT"),
        (["--address=a:1", "--resources=robot"], "resources="),
        (["--address=a:1", "--resources={robot: -1}"], "resources="),
        (["--address=a:1", "--resources={CPU: 1}"], "resources: CPU is no custom resource"),
    ],
)
def test_what_is_refused(flags, message, capsys):
    assert main(["actor", *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_port_is_of_the_ray_that_the_command_starts(capsys, tmp_path):
    both = ["--ray_port=6380", "--ray_address=10.0.0.1:6379", f"--output_dir={tmp_path / 'run'}"]
    assert main(["train", *both]) == 2
    assert "remove one of them" in capsys.readouterr().err


def test_it_waits_for_whoever_listens_and_says_so_once():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # nobody listens yet: connections are refused
        said = []

        def say(text):
            said.append(text)
            server.listen()

        wait_for(f"127.0.0.1:{server.getsockname()[1]}", say)
    assert len(said) == 1
    assert "waiting for pld-ray train" in said[0]
