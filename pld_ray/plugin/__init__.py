"""Trained policies outside of training: what acts, its folder, and LeRobot's classes around it.

LeRobot finds the policy types through the distribution `lerobot_policy_pld_ray`.
"""
