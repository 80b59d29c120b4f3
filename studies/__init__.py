"""What rules, budgets, trees, training and engines cost and bring: a folder for each study, whose results are kept."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # some enumerate what the tests do: `support`
