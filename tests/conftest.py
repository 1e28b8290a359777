"""Every test process has Ray sessions of its own, so that files can run side by side."""

import os
import tempfile

# before any Ray process: clusters find each other through a file in this folder
os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="ray")
