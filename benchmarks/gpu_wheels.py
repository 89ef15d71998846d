"""What whet needs beside torch, as wheels for a machine without a network.

    python benchmarks/gpu_wheels.py [--python 3.12]

Fills .wheels/ with the packages that whet's core and its tests on a GPU import, for another Python on Linux x86_64, and
says what they weigh; they must stay below 40 MB. Left out is what a machine with torch has: torch's own dependencies,
NumPy and SciPy (35 MB alone). `benchmarks/gpu.py` checks for them before it begins.
"""

import argparse
import re
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
WHEELS = ROOT / ".wheels"
UNPACKED = ROOT / "build" / "gpu"  # apart from the wheels, which are to be carried to another machine
MOST_BYTES = 40_000_000
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")

# Distribution -> the module by which it is known to be there.
CORE = {
    "alembic": "alembic", "annotated-doc": "annotated_doc", "annotated-types": "annotated_types",
    "cloudpickle": "cloudpickle", "colorlog": "colorlog", "greenlet": "greenlet", "jinja2": "jinja2",
    "lazy-loader": "lazy_loader", "libcst": "libcst", "mako": "mako", "markdown-it-py": "markdown_it",
    "markupsafe": "markupsafe", "mdurl": "mdurl", "optuna": "optuna", "packaging": "packaging", "pathspec": "pathspec",
    "platformdirs": "platformdirs", "psutil": "psutil",
    "pydantic": "pydantic", "pydantic-core": "pydantic_core", "pygments": "pygments", "pyyaml": "yaml", "rich": "rich",
    "safetensors": "safetensors", "shellingham": "shellingham", "sqlalchemy": "sqlalchemy", "tomli-w": "tomli_w",
    "torchao": "torchao", "tqdm": "tqdm", "typer": "typer", "typing-extensions": "typing_extensions",
    "typing-inspection": "typing_inspection",
}  # fmt: skip
TESTS = {
    "hypothesis": "hypothesis", "iniconfig": "iniconfig", "pluggy": "pluggy", "pytest": "pytest",
    "pytest-timeout": "pytest_timeout", "sortedcontainers": "sortedcontainers",
}  # fmt: skip
# For the built-in workloads and for what the driver knows of a GPU; without them their steps are skipped.
EXTRAS = {"nvidia-ml-py": "pynvml", "scikit-learn": "sklearn", "tokenizers": "tokenizers"}
LEFT_OUT = {"torch": "torch", "numpy": "numpy", "scipy": "scipy"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="the version that the GPU machine has")
    version = parser.parse_args().python
    if not re.fullmatch(r"3\.\d+", version):
        sys.exit(f"--python takes a version as 3.12, not {version!r}")
    print(fill(version))


def fill(version: str) -> str:
    """Download every wheel for a Python version. Returns what they weigh, in words; ends the program above 40 MB."""
    for old in WHEELS.glob("*.whl"):
        old.unlink()
    WHEELS.mkdir(exist_ok=True)
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    options = ["--no-deps", "--only-binary=:all:", "--python-version", version, "--dest", str(WHEELS)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *options, *platforms]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    done = subprocess.run([*command, *constraints, *CORE, *TESTS, *EXTRAS], check=False)
    if done.returncode:
        sys.exit(f"pip could not fetch the wheels for Python {version}; what it said stands above")
    total = sum(wheel.stat().st_size for wheel in WHEELS.glob("*.whl"))
    said = f"{len(list(WHEELS.glob('*.whl')))} wheels for Python {version} in {WHEELS.name}/: {total / 1e6:.1f} MB"
    if total > MOST_BYTES:
        sys.exit(f"{said}, more than {MOST_BYTES / 1e6:.0f} MB: leave one of EXTRAS out")
    return said


def missing(names: dict[str, str]) -> list[str]:
    """The distributions among `names` that this Python cannot import."""
    return [name for name, module in names.items() if find_spec(module) is None]


def unpack(wheels: Path = WHEELS, unpacked: Path = UNPACKED) -> Path | None:
    """Unpack the wheels, each once, for this Python, and return the directory; None where there are none.

    Raises ValueError where they are for another Python.
    """
    found = sorted(wheels.glob("*.whl"))
    if not found:
        return None
    own = f"cp{sys.version_info.major}{sys.version_info.minor}"
    for wheel in found:
        python, abi = wheel.stem.split("-")[2:4]
        if abi.startswith("cp") and python != own:
            raise ValueError(f"{wheel.name} is for {python}, and this Python is {own}: make gpu-wheels GPU_PYTHON=3.N")
    site = unpacked / own
    for wheel in found:
        mark = site / f".{wheel.stem}"
        if not mark.exists():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
            mark.touch()
    return site


if __name__ == "__main__":
    main()
