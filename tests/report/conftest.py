import shutil

import pytest


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """A store's file with its tables, made once: MLflow's migrations take seconds."""
    from tracked import Tracked

    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    Tracked(f"sqlite:///{path}")
    return path


@pytest.fixture
def store(tmp_path, empty_store):
    """An empty sqlite store."""
    from tracked import Tracked

    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return Tracked(f"sqlite:///{tmp_path / 'mlflow.db'}")


@pytest.fixture(scope="session")
def sweep(tmp_path_factory, empty_store):
    """A sweep of 12 points with 3 seeds in a sqlite store, with two videos."""
    from tracked import Tracked, make_sweep

    root = tmp_path_factory.mktemp("outputs")
    shutil.copy(empty_store, root / "mlflow.db")
    folder = root / "residual scale"
    make_sweep(Tracked(f"sqlite:///{root / 'mlflow.db'}"), folder)
    for trial in ("t0000", "t0001"):
        # where `pld-ray eval --videos` puts it
        video = folder / "trials" / trial / "eval" / "best" / "videos" / "state 7.mp4"
        video.parent.mkdir(parents=True)
        video.write_bytes(b"film")
    return folder
