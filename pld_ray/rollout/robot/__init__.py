"""An arm that LeRobot drives, as an environment."""
