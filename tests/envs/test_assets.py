"""Where assets are looked for, and what is said when some are missing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from envs import LiberoEnv, assets, bootstrap
from envs.assets import ASSETS_VARIABLE, AssetsIncompleteError, required_files, resolve_assets

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10")


@pytest.fixture(autouse=True)
def _nowhere_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv(ASSETS_VARIABLE, raising=False)
    monkeypatch.setattr(assets, "libero_root", lambda: tmp_path / "package")
    monkeypatch.setattr(assets, "configured_assets", lambda: tmp_path / "configured")


def fill(folder, suite):
    for name in required_files(suite):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_manifests_list_what_liberos_suites_need():
    assert [len(required_files(suite)) for suite in SUITES] == [31, 39, 40, 127]
    assert len(set().union(*map(required_files, SUITES))) == 151
    assert "stable_scanned_objects/basket/basket.xml" in required_files("libero_object")


@pytest.mark.parametrize("suite", SUITES)
def test_the_real_folder_is_complete(libero_assets, suite):
    assert resolve_assets(suite, libero_assets) == libero_assets.resolve()


def test_argument_then_variable_then_configuration_then_package(monkeypatch, tmp_path):
    suite = "libero_object"
    places = [fill(tmp_path / name, suite) for name in ("argument", "variable", "configured")]
    package = fill(tmp_path / "package" / "assets", suite)
    monkeypatch.setenv(ASSETS_VARIABLE, str(places[1]))
    assert resolve_assets(suite, places[0]) == places[0]
    assert resolve_assets(suite) == places[1]
    monkeypatch.delenv(ASSETS_VARIABLE)
    assert resolve_assets(suite) == places[2]
    (places[2] / required_files(suite)[5]).unlink()
    assert resolve_assets(suite) == package


def test_the_first_missing_file_the_count_the_suite_and_the_fix_are_named(tmp_path):
    folder = fill(tmp_path / "some", "libero_goal")
    first, second = required_files("libero_goal")[2], required_files("libero_goal")[7]
    (folder / second).unlink()
    (folder / first).unlink()
    with pytest.raises(AssetsIncompleteError) as caught:
        resolve_assets("libero_goal", folder)
    message = str(caught.value)
    assert f"Suite libero_goal needs {first}, which {folder} lacks (2 of 40 files" in message
    assert ASSETS_VARIABLE in message
    assert "'hub'" in message


def test_nothing_named_and_nothing_installed_is_an_error(tmp_path):
    with pytest.raises(AssetsIncompleteError, match=r"libero_10 needs LIBERO's assets"):
        resolve_assets("libero_10")
    with pytest.raises(AssetsIncompleteError, match=r"nowhere does not exist"):
        resolve_assets("libero_10", tmp_path / "nowhere")


def test_only_the_word_hub_downloads(monkeypatch, tmp_path):
    asked = []

    def download(repository, repo_type):
        asked.append((repository, repo_type))
        return str(fill(tmp_path / "hub", "libero_object"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(AssetsIncompleteError):
        resolve_assets("libero_object")
    assert asked == []
    assert resolve_assets("libero_object", "hub") == (tmp_path / "hub").resolve()
    monkeypatch.setenv(ASSETS_VARIABLE, "hub")
    resolve_assets("libero_object")
    assert asked == [("lerobot/libero-assets", "dataset")] * 2


def test_what_the_hub_does_not_give_is_one_sentence(monkeypatch, tmp_path):
    """With the real client, kept from the network as every command keeps it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(AssetsIncompleteError, match=r"libero-assets: .*'HF_HUB_OFFLINE=0'") as told:
        resolve_assets("libero_object", "hub")
    assert "\n" not in str(told.value)


def test_libero_90_names_a_file_missing_on_load(libero_assets):
    env = LiberoEnv(
        "libero_90",
        "KITCHEN_SCENE7_put_the_white_bowl_on_the_plate",
        assets=libero_assets,
    )
    if (libero_assets / "stable_scanned_objects/white_bowl/white_bowl.xml").exists():
        pytest.skip("these assets are complete")
    with pytest.raises(AssetsIncompleteError, match=r"libero_90 needs stable_scanned_objects/whi"):
        env.reset()


def test_an_incomplete_folder_stops_a_fresh_process_without_prompt_or_network(tmp_path):
    script = (
        "import socket\n"
        "def refuse(*args, **kwargs):\n"
        "    raise OSError('no network in this test')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from envs import LiberoEnv\n"
        "LiberoEnv('libero_object').reset()\n"
    )
    environment = {
        **{k: v for k, v in os.environ.items() if k not in ("LIBERO_CONFIG_PATH", "MUJOCO_GL")},
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path),
        ASSETS_VARIABLE: str(tmp_path),
    }
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("envs.assets.AssetsIncompleteError: Suite libero_object needs scenes/")
    assert "39 of 39" in last


def test_the_suite_of_this_project_needs_no_assets():
    env = LiberoEnv()
    env.reset(seed=0)
    env.close()
    assert bootstrap.import_libero() is not None
