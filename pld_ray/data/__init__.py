"""Episodes as LeRobotDataset v3: converting, reading, statistics, windows. No Ray in here.

The files are written and read with pyarrow, so that neither needs LeRobot's imports.
"""
