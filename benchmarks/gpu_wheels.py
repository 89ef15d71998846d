"""What whet needs beside torch on a machine without a network, as wheels.

    python benchmarks/gpu_wheels.py [--python 3.12] [--all]

Fills .wheels/ with the packages that the check on a GPU imports and that a machine with PyTorch and its usual
companions (pytest, rich, typer, transformers) lacks, for another Python on Linux x86_64, and says what they weigh. With
--all come the companions too. torch, NumPy and SciPy are always left out: SciPy alone weighs 35 MB. `benchmarks/gpu.py`
checks for all of them before it begins.
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
MOST_BYTES = 7_200_000  # they were 6.9 MB; with the tracked files below 60 MB, which a test holds
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")

# Distribution -> the module by which it is known to be there.
CARRIED = {
    "alembic": "alembic", "annotated-types": "annotated_types", "colorlog": "colorlog", "mako": "mako",
    "optuna": "optuna", "platformdirs": "platformdirs", "pydantic": "pydantic", "pydantic-core": "pydantic_core",
    "tomli-w": "tomli_w", "torchao": "torchao", "typing-inspection": "typing_inspection",
}  # fmt: skip
# Wheels without compiled code, which weigh half as much and do all that whet asks of them.
PURE = {"sqlalchemy": "sqlalchemy"}
USUAL = {
    "annotated-doc": "annotated_doc", "cloudpickle": "cloudpickle", "execnet": "execnet", "hypothesis": "hypothesis",
    "iniconfig": "iniconfig", "jinja2": "jinja2", "lazy-loader": "lazy_loader", "markdown-it-py": "markdown_it",
    "markupsafe": "markupsafe", "mdurl": "mdurl", "packaging": "packaging",
    "pluggy": "pluggy", "psutil": "psutil", "pygments": "pygments", "pytest": "pytest",
    "pytest-timeout": "pytest_timeout", "pytest-xdist": "xdist", "pyyaml": "yaml", "rich": "rich",
    "safetensors": "safetensors", "shellingham": "shellingham", "sortedcontainers": "sortedcontainers",
    "tqdm": "tqdm", "typer": "typer", "typing-extensions": "typing_extensions",
}  # fmt: skip
# For the built-in workloads and for what the driver knows of a GPU; without them their steps are skipped.
EXTRAS = {"nvidia-ml-py": "pynvml", "scikit-learn": "sklearn", "tokenizers": "tokenizers"}
# whet-audit comes with the repository, and reads code on no GPU: what it needs is left out. greenlet is SQLAlchemy's,
# where it runs on asyncio.
UNUSED = {"whet-audit": "whet_audit", "greenlet": "greenlet"}
LEFT_OUT = {"torch": "torch", "numpy": "numpy", "scipy": "scipy"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="the version that the GPU machine has")
    parser.add_argument("--all", action="store_true", help="for a machine that has torch, NumPy and SciPy alone")
    options = parser.parse_args()
    if not re.fullmatch(r"3\.\d+", options.python):
        sys.exit(f"--python takes a version as 3.12, not {options.python!r}")
    print(fill(options.python, everything=options.all))


def fill(version: str, *, everything: bool) -> str:
    """Download every wheel for a Python version. Returns what they weigh, in words; ends the program if it is too much.

    everything: also what a machine with PyTorch usually has, whatever that weighs.
    """
    for old in WHEELS.glob("*.whl"):
        old.unlink()
    WHEELS.mkdir(exist_ok=True)
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    _download(version, [*CARRIED, *([*USUAL, *EXTRAS] if everything else [])], platforms)
    _download(version, list(PURE), ["--platform", "any", "--implementation", "py", "--abi", "none"])
    for wheel in WHEELS.glob("*.whl"):
        compress(wheel)
    total = sum(wheel.stat().st_size for wheel in WHEELS.glob("*.whl"))
    said = f"{len(list(WHEELS.glob('*.whl')))} wheels for Python {version} in {WHEELS.name}/: {total / 1e6:.1f} MB"
    if total > MOST_BYTES and not everything:
        sys.exit(f"{said}, more than {MOST_BYTES / 1e6:.1f} MB: see what has grown, or raise MOST_BYTES with its test")
    return said


def _download(version: str, names: list[str], kind: list[str]) -> None:
    """Download wheels of the packages. kind: pip's options that choose among a package's wheels."""
    options = ["--no-deps", "--only-binary=:all:", "--python-version", version, "--dest", str(WHEELS)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *options, *kind]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    if subprocess.run([*command, *constraints, *names], check=False).returncode:
        sys.exit(f"pip could not fetch the wheels for Python {version}; what it said stands above")


def compress(wheel: Path) -> None:
    """Write a wheel again with a compression that takes less, which `unpack` and pip read as well."""
    smaller = wheel.with_suffix(".smaller")
    with zipfile.ZipFile(wheel) as found, zipfile.ZipFile(smaller, "w", zipfile.ZIP_LZMA) as made:
        for member in found.infolist():
            content = found.read(member)
            member.compress_type = zipfile.ZIP_LZMA
            made.writestr(member, content)
    smaller.replace(wheel)


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
