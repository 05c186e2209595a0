"""The lessons are modules of the folder `notebooks`, as a kernel that starts there sees them."""

import sys
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
sys.path.insert(0, str(NOTEBOOKS))
