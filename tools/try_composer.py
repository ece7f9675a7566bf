"""Run the tests of the Composer integration with the real Composer.

Composer requires an older torch, so it is installed without its dependencies into a temporary environment with the current
torch:

    python tools/try_composer.py [PYTEST ARGUMENT ...]

The environment uses the packages of the Python that runs this program, and adds Composer and the packages that it imports.
One of these is torchvision, whose library does not load if it was built for another torch (such as one with CUDA). Composer
does not need it, so in that case the schemas of two of its operators are declared instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = "tests/integrations/composer"

# Composer 0.32.1 and the packages it imports, tested with torch 2.13.0; installed without their dependencies.
PACKAGES = (
    "mosaicml==0.32.1",
    "mosaicml-cli==0.8.3",
    "apache-libcloud==3.9.1",
    "backoff==2.2.1",
    "coolname==5.0.0",
    "fasteners==0.20",
    "gql==4.4.0",
    "graphql-core==3.3.0rc0",
    "importlib_metadata==8.9.0",
    "lightning-utilities==0.15.3",
    "pillow",
    "prompt_toolkit==3.0.53",
    "py-cpuinfo==9.0.0",
    "python-dateutil",
    "pytorch-ranger==0.1.1",
    "questionary==2.1.1",
    "ruamel.yaml==0.19.1",
    "tabulate==0.10.0",
    "tenacity==9.2.1",
    "torch-optimizer==0.3.0",
    "torchmetrics==1.6.3",
    "torchvision==0.28.0",
    "tqdm",
    "validators==0.36.0",
    "wcwidth",
    "websockets",
    "zipp",
)

# Composer imports anyio, which is also a pytest plugin, before pytest can register it.
LATE_PLUGINS = ("-W", "ignore::pytest.PytestAssertRewriteWarning")

# Runs in the environment. If torchvision's library loads, it declares the operators itself.
PROGRAM = """
import sys, torch
try:
    import torchvision
except RuntimeError:
    for name in [name for name in sys.modules if name.partition('.')[0] == 'torchvision']:
        del sys.modules[name]
    declared = torch.library.Library('torchvision', 'DEF')
    for name in ('nms', 'qnms'):
        declared.define(name + '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
import composer
print('Composer', composer.__version__, 'with torch', torch.__version__, flush=True)
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def main() -> int:
    """Create the environment, run the tests in it, and return pytest's exit code."""
    with tempfile.TemporaryDirectory(prefix="composer-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES], check=True)
        added = sysconfig.get_path("purelib", vars={"base": folder})
        Path(added, "shared.pth").write_text("\n".join(seen()), encoding="utf-8")
        arguments = sys.argv[1:] or ["-q", TESTS]
        done = subprocess.run(
            [python, "-c", PROGRAM, "-p", "no:cacheprovider", *LATE_PLUGINS, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            check=False,
        )
    return done.returncode


def seen() -> list[str]:
    """Return the folders in which this Python finds its packages."""
    return sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


if __name__ == "__main__":
    sys.exit(main())
