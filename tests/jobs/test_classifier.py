"""`pld-ray classifier`, whole, where success shows in a picture that needs no graphics library."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aloha_files import write_folder
from sight_env import CAMERA, SightEnv
from toy import CountingEnv, CountingPolicy

from pld_ray.cli import main
from pld_ray.config import InterventionConfig, TrainConfig
from pld_ray.config.file import load_config
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.data.dataset import Dataset
from pld_ray.jobs import classifier_frames
from pld_ray.jobs.classifier import read_frames
from pld_ray.jobs.classifier_frames import FrameGoal, Player, collect_frames
from pld_ray.networks.reward_classifier import load_classifier
from pld_ray.rollout.classifier_reward import AfterSuccess, ClassifierReward
from pld_ray.rollout.factory import create_vector_env, unjudged
from pld_ray.rollout.intervention import NOTHING, Turn
from pld_ray.rollout.messages import SampleRequest
from pld_ray.rollout.scripted_person import ScriptedPerson, make_helper
from pld_ray.rollout.streams import FinishedEpisodes, Streams
from pld_ray.rollout.vector_env import BaseActionVectorEnv, InfosPerEnv

SIGHT = [
    *("--env.entry_point=sight_env:SightEnv", "--env.task=see", "--env.suite=point"),
    "--policy.type=none",
]
COLLECT = ["classifier", "collect", *SIGHT, "--device=scripted", "--intervention.patience_steps=6"]
TRAIN = [
    *("classifier", "train", "--encoder=cnn", "--steps=80", "--batch_size=48"),
    *("--learning_rate=1e-3", "--latent_dim=32", "--hidden_dim=32", "--image_shift=1"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with datasets `seen` and `unseen`, and a classifier of the first."""
    root = tmp_path_factory.mktemp("classifier")
    for name, flags in {"seen": ["--seed=1"], "unseen": ["--init_states"]}.items():
        number = f"--episodes={30 if name == 'seen' else 12}"
        assert main([*COLLECT, f"--root={root / name}", number, "--hold=4", *flags]) == 0
    assert main([*TRAIN, f"--dataset={root / 'seen'}", f"--output_dir={root / 'made'}"]) == 0
    return root


def test_frames_carry_the_label_of_what_they_show(trained):
    frames = read_frames([trained / "unseen"])
    dataset = Dataset(trained / "unseen")
    assert len(frames) == dataset.lengths.sum() + 12  # each has its final observation
    state = dataset.columns(["observation.environment_state"])["observation.environment_state"]
    reached = np.linalg.norm(state[:, :3], axis=1) < 0.05
    finals = np.cumsum(dataset.lengths + 1) - 1
    shown = np.delete(frames.success, finals)
    np.testing.assert_array_equal(shown, reached)
    first = np.concatenate([[0], finals[:-1] + 1])
    assert not frames.success[first].any()
    # an episode outlasts its success by four steps
    for episode in np.unique(frames.episode[frames.success]):
        rows = frames.success[frames.episode == episode]
        assert len(rows) - int(np.argmax(rows)) == 5 or len(rows) == 31


def test_precision_and_recall_on_init_states_that_it_has_not_seen(trained, capsys):
    unseen = f"--dataset={trained / 'unseen'}"
    assert main(["classifier", "evaluate", f"--classifier={trained / 'made'}", unseen]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["precision"] > 0.9
    assert figures["recall"] > 0.7
    assert figures["episode_recall"] > 0.7
    for picture in ("precision_recall.png", "precision_recall_unseen.png"):
        assert (trained / "made" / picture).read_bytes().startswith(b"\x89PNG")


def test_images_that_are_declared_channels_first_are_judged(trained, tmp_path, capsys):
    """As LeRobot's `gym_manipulator` declares them."""
    other = shutil.copytree(trained / "unseen", tmp_path / "other")
    path = other / "meta/info.json"
    info = json.loads(path.read_text())
    height, width, channels = info["features"][CAMERA]["shape"]
    names = ["channels", "height", "width"]
    info["features"][CAMERA] |= {"shape": [channels, height, width], "names": names}
    path.write_text(json.dumps(info))
    made = f"--classifier={trained / 'made'}"
    assert main(["classifier", "evaluate", made, f"--dataset={other}"]) == 0
    assert "precision" in capsys.readouterr().out


def test_a_success_that_no_frame_shows_is_refused(tmp_path, capsys):
    """As ALOHA's are converted: marked on the last frame, of what follows nothing is kept."""
    write_folder(tmp_path / "recordings")
    root = tmp_path / "converted"
    convert = ["convert", "aloha", str(tmp_path / "recordings"), "--repo_id=lab/fold"]
    assert main([*convert, f"--root={root}", "--mode=image", "--workers=1"]) == 0
    assert main([*TRAIN, f"--dataset={root}", f"--output_dir={tmp_path / 'made'}"]) == 2
    told = capsys.readouterr().err
    assert f"{root}, episode 0: next.success is true of its last frame alone" in told
    (path,) = root.glob("data/*/*.parquet")
    table = pq.read_table(path)
    index = table.column_names.index("next.success")
    reached = table["next.success"].to_numpy(zero_copy_only=False)
    reached |= np.append(reached[1:], False)  # the step before, which led to the last frame
    pq.write_table(table.set_column(index, "next.success", pa.array(reached)), path)
    frames = read_frames([root])
    assert np.flatnonzero(frames.success).tolist() == [5, 12]  # the last ones of two successes


def test_it_is_the_reward_beside_the_true_one(trained):
    classifier = load_classifier(trained / "made")
    env = ClassifierReward(SightEnv(), classifier)
    agreed = 0
    for state in range(10):
        env.reset(options={"init_state_id": state})
        helper, over = env.helper(), False
        while not over:
            _, reward, terminated, truncated, info = env.step(helper.act())
            over = terminated or truncated
            assert reward == float(info["is_success"]) == float(terminated)
        agreed += info["is_success"] == info["true_success"]
    assert agreed >= 8


def test_a_rollout_stores_its_verdict_and_keeps_the_true_one_beside_it(trained):
    settings = {"entry_point": "sight_env:SightEnv", "base_policy": {"type": "none"}}
    vector = create_vector_env({**settings, "reward_classifier": str(trained / "made")})
    env, rng = InfosPerEnv(vector), np.random.default_rng(0)
    options = InterventionConfig(device="scripted", patience_steps=1)
    person = ScriptedPerson(make_helper(vector.envs), 1, options, rng)
    observation, _ = env.reset(seed=3)
    params = ResidualSACParams(use_probing=False)
    space = vector.single_action_space
    streams = Streams(observation, space, params, Still(), rng, False, None, person, vector)
    finished = FinishedEpisodes()
    while len(finished.summaries) < 8:
        streams.step(env.step, SampleRequest(1, intervene=True), 0, finished)
    agree = [e.success == e.true_success for e in finished.summaries]
    assert np.mean(agree) >= 0.75
    for columns, summary in zip(finished.columns, finished.summaries, strict=True):
        assert columns["reward"][:-1].tolist() == [0.0] * (summary.length - 1) + [summary.success]
        assert columns["terminated"].any() == summary.success == columns["success"].any()
    assert "reward_classifier" not in unjudged({**settings, "reward_classifier": "x"})


class Still:
    """Acts as the base policy does."""

    residual_scale = 1.0

    def act(self, observation, noise=None, forced=None):
        return observation["base_action"].copy(), None


class Seen:
    """A view that keeps what it is shown."""

    def __init__(self):
        self.steps, self.ends = [], []

    def show(self, observation, action, person_acts):
        self.steps.append((observation, action, person_acts))

    def end_episode(self, success):
        self.ends.append((len(self.steps), success))


def test_a_view_is_shown_every_frame_that_is_kept():
    vector = create_vector_env(
        {"entry_point": "sight_env:SightEnv", "base_policy": {"type": "none"}}
    )
    rng, seen = np.random.default_rng(0), Seen()
    options = InterventionConfig(device="scripted", patience_steps=6)
    person = ScriptedPerson(make_helper(vector.envs), 1, options, rng)
    player = Player(InfosPerEnv(vector), person, FrameGoal(3), rng, seen)
    episodes = [player.play(number) for number in range(3)]
    kept = {key: np.concatenate([e[key][:-1] for e in episodes]) for key in episodes[0]}
    assert [end for end, _ in seen.ends] == np.cumsum(
        [len(e["reward"]) - 1 for e in episodes]
    ).tolist()
    assert [success for _, success in seen.ends] == [bool(e["success"].any()) for e in episodes]
    np.testing.assert_array_equal([o[CAMERA] for o, _, _ in seen.steps], kept[CAMERA])
    np.testing.assert_array_equal([action for _, action, _ in seen.steps], kept["action"])
    assert [acts for *_, acts in seen.steps] == kept["intervened"].tolist()
    assert 0 < kept["intervened"].mean() < 1


class Lifting:
    """Moves the arm at two steps of an episode."""

    def begin(self, env_id):
        self.step = -1

    def intervene(self, observation, stepping, env_steps):
        self.step += 1
        return Turn({0: np.float32([0.5, 0, 0])}) if self.step in (1, 2) else NOTHING


def test_where_the_person_lets_go_the_base_policy_plans_anew():
    """Its chunks of two are of the step at which it was asked: 0, 2, and 3."""
    env = InfosPerEnv(BaseActionVectorEnv([AfterSuccess(CountingEnv(5), 0)], CountingPolicy()))
    goal = FrameGoal(1, noise=0.0)
    episode = Player(env, Lifting(), goal, np.random.default_rng(0)).play(0)
    assert episode["intervened"].tolist() == [False, True, True, False, False, False]
    asked_at = (100 * episode["base_action"][:, 1]).round().tolist()
    assert asked_at == [0, 0, 2, 3, 3, 5]
    np.testing.assert_array_equal(episode["action"][3:5], episode["base_action"][3:5])


class Impatient:
    """Throws the second episode away, and ends every other one at once."""

    begun = 0

    def begin(self, env_id):
        self.begun += 1

    def intervene(self, observation, intervenes, iteration):
        return Turn({}, {0: "discard" if self.begun == 2 else "failure"})

    def close(self):
        pass


def test_an_episode_that_is_thrown_away_is_played_again_from_its_init_state(tmp_path, monkeypatch):
    monkeypatch.setattr(classifier_frames, "make_intervenor", lambda *_: Impatient())
    config, goal = load_config(TrainConfig, SIGHT), FrameGoal(4, init_states=True)
    kept = []

    def stop_after_two(*_):
        kept.append(None)
        if len(kept) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect_frames(config, tmp_path / "kept", goal, stop_after_two)
    collect_frames(config, tmp_path / "kept", goal)  # which goes on
    dataset = Dataset(tmp_path / "kept")
    assert len(dataset.episodes) == 4
    for number in range(4):
        observation, _ = SightEnv().reset(options={"init_state_id": number})
        (first,) = dataset.images(number, CAMERA, [0])
        np.testing.assert_array_equal(first, observation[CAMERA])


@pytest.mark.skipif(find_spec("rerun") is not None, reason="the viewer is installed")
def test_a_viewer_that_is_missing_is_said_before_anything_is_written(tmp_path, capsys):
    folder = tmp_path / "frames"
    assert main([*COLLECT, f"--root={folder}", "--intervention.view=rerun"]) == 2
    assert "needs rerun-sdk, which is not installed" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["look"], "knows collect, train, evaluate"),
        (["train"], "--dataset=DIR is missing"),
        (["train", "--root=x"], "takes no --root"),
        (["evaluate", "--classifier=x"], "--dataset=DIR is missing"),
        (["collect", *SIGHT], "--root=DIR is missing"),
        (["collect", "--env.entry_point=envs.point:PointEnv", "--root=x"], "needs cameras"),
        (["train", "--train_encoder=false", "--dataset=x"], "needs encoder_weights"),
        (["evaluate", "--classifier=none", "--dataset=x"], "is no reward classifier"),
    ],
)
def test_bad_input_is_one_sentence(command, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["classifier", *command]) == 2
    assert message in capsys.readouterr().err


def test_other_cameras_are_refused_before_anything_starts(trained, capsys, tmp_path):
    other = ["--env.entry_point=picture_env:PictureEnv", "--env.task=see", "--policy.type=none"]
    judged = f"--env.reward_classifier={trained / 'made'}"
    assert main(["train", *other, judged, "--dry_run", f"--output_dir={tmp_path / 'run'}"]) == 2
    assert f"sees {CAMERA} of 40 x 40 pixels and the environment gives" in capsys.readouterr().err
