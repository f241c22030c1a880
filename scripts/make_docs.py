"""Write the generated pages of docs/ again: ``make docs``."""

import subprocess
import sys
from pathlib import Path

for name in ("make_errors_md.py", "make_configuration_md.py"):
    subprocess.run([sys.executable, str(Path(__file__).with_name(name))], check=True)
