"""Write the generated pages of docs/ again: ``make docs``."""

import runpy
from pathlib import Path

for name in ("make_errors_md.py", "make_configuration_md.py"):
    runpy.run_path(str(Path(__file__).with_name(name)), run_name="__main__")
