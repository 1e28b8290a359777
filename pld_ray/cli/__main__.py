"""`python -m pld_ray.cli` is `pld-ray`."""

import sys

from pld_ray.cli.entry import main

sys.exit(main())
