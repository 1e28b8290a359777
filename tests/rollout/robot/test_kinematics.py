"""Kinematics against MuJoCo's own dynamics-free truth, and files that are refused."""

from __future__ import annotations

import lerobot_robot_tabletop as plugin
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from pld_ray.rollout.robot.kinematics import Kinematics

JOINTS = ["pan", "lift", "elbow", "roll", "wrist_pitch", "hand_roll"]
BENT = np.array([0.1, -0.6, 1.5, 0.2, 0.5, -0.3])
LINKS = """
<robot name="two">
  <link name="base"/>
  <joint name="pan" type="revolute"><parent link="base"/><child link="one"/>
    <origin xyz="0 0 0.1"/><axis xyz="0 0 1"/><limit lower="-1.5" upper="1.5"/></joint>
  <link name="one"><collision><geometry><mesh filename="package://gone.stl"/></geometry>
    </collision></link>
  <joint name="lift" type="revolute"><parent link="one"/><child link="two"/>
    <origin xyz="0 0 0.1"/><axis xyz="0 1 0"/><limit lower="-1" upper="1"/></joint>
  <link name="two"/>
  <joint name="fixed" type="fixed"><parent link="two"/><child link="tip"/>
    <origin xyz="0.2 0 0"/></joint>
  <link name="tip"/>
</robot>
"""


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "arm.xml"
    path.write_text(plugin.MODEL)
    return Kinematics(str(path), JOINTS, "grasp")


small = st.floats(-1, 1, allow_nan=False)


@settings(max_examples=50)
@given(st.tuples(*[small] * 6))
def test_what_can_be_reached_is_reached(arm, way):
    position, rotation = arm.pose(BENT)
    goal = position + 0.01 * np.array(way[:3])
    turned = Rotation.from_rotvec(0.05 * np.array(way[3:])).as_matrix() @ rotation
    q = arm.reach(BENT, goal, turned)
    at, has = arm.pose(q)
    assert np.abs(at - goal).max() < 1e-5
    assert Rotation.from_matrix(turned @ has.T).magnitude() < 1e-3
    assert (q >= arm.low).all()
    assert (q <= arm.high).all()


def test_what_is_out_of_reach_ends_within_the_limits(arm):
    q = arm.reach(BENT, np.array([-3.0, 1.0, -2.0]), np.eye(3))
    assert np.isfinite(q).all()
    assert (q >= arm.low).all()
    assert (q <= arm.high).all()
    assert ((q == arm.low) | (q == arm.high)).any()


def test_a_urdf_without_its_meshes_whose_hand_is_a_fixed_link(tmp_path):
    (tmp_path / "two.urdf").write_text(LINKS)
    arm = Kinematics(str(tmp_path / "two.urdf"), ["pan", "lift"], "tip")
    np.testing.assert_allclose(arm.pose(np.zeros(2))[0], [0.2, 0, 0.2], atol=1e-12)
    up = [0.0, 0.2 * np.cos(0.5), 0.2 + 0.2 * np.sin(0.5)]  # by hand: pan 90 degrees, lift -0.5
    np.testing.assert_allclose(arm.pose(np.array([np.pi / 2, -0.5]))[0], up, atol=1e-12)
    np.testing.assert_array_equal(arm.low, [-1.5, -1])


def test_an_arm_of_two_joints_follows_the_position_more_than_the_orientation(tmp_path):
    (tmp_path / "two.urdf").write_text(LINKS)
    arm = Kinematics(str(tmp_path / "two.urdf"), ["pan", "lift"], "tip")
    position, rotation = arm.pose(np.zeros(2))
    at, _ = arm.pose(arm.reach(np.zeros(2), position + np.array([0, 0.01, 0.01]), rotation))
    assert ((at - position)[1:] > 0.008).all()


@pytest.mark.parametrize(
    ("text", "joints", "hand", "why"),
    [
        (None, JOINTS, "grasp", "no such file"),
        ("no model", JOINTS, "grasp", "cannot be read by MuJoCo: "),
        (plugin.MODEL, ["pan", "wrist_roll"], "grasp", "has no joint 'wrist_roll'.*joint_names"),
        (plugin.MODEL, JOINTS, "grasps", "env.arm.end_effector=grasps: .* no such site or body"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_in_one_line(tmp_path, text, joints, hand, why):
    path = tmp_path / "arm.xml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=why) as refused:
        Kinematics(str(path), joints, hand)
    assert "\n" not in str(refused.value)
