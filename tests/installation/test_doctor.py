"""`whet doctor`: broken extras are reported, nothing private is shown, and the exit code says whether whet can tune."""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import whet
from whet.errors import DISTRIBUTION
from whet.installation import doctor as module
from whet.installation.checkup import Advice, Checkup, Compiler, Extra, Package, Place, State
from whet.installation.doctor import _on_compilers, _on_machine, _on_packages
from whet.installation.packages import EXTRAS, ImportTrials, installed, module_of, requirements
from whet.installation.privacy import Anonymiser, environment

# Packages that take seconds to import. One test imports them; others find empty modules of their names.
LARGE = ("matplotlib", "nncf", "onnx", "onnxruntime", "onnxscript", "sklearn", "torchao", "transformers")
WHET = [sys.executable, "-P", "-m", "whet", "doctor"]


def run(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, with an empty cache."""
    there = {**os.environ, "WHET_CACHE": str(tmp_path / "cache"), **variables}
    return subprocess.run([*WHET, *arguments], cwd=tmp_path, env=there, capture_output=True, text=True, check=False)


def test_the_page_names_what_is_installed(tmp_path: Path) -> None:
    done = run(tmp_path, WHET_API_KEY="hunter2-is-secret", MKL_NUM_THREADS="3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("whet doctor: whet can tune here")
    assert f"whet                    {whet.__version__}" in done.stdout
    assert "hunter2" not in done.stdout
    assert "WHET_API_KEY            set; its value is not shown" in done.stdout
    assert "MKL_NUM_THREADS         3" in done.stdout
    assert "limits are not measured yet" in done.stdout
    assert not (tmp_path / "cache").exists()  # nothing was measured or kept


@pytest.mark.parametrize(
    ("broken", "code", "said"),
    [
        ("openvino", 0, "openvino 2026"),
        ("torch", 1, "whet cannot tune here: torch"),
        ("pydantic", 1, "whet cannot tune here: pydantic does not import"),
    ],
)
def test_a_package_that_does_not_import_is_reported(tmp_path: Path, broken: str, code: int, said: str) -> None:
    (tmp_path / "broken").mkdir()
    for large in LARGE:
        (tmp_path / "broken" / f"{large}.py").touch()
    (tmp_path / "broken" / f"{broken}.py").write_text("raise ImportError('libnothing.so.1 is missing')\n")
    done = run(tmp_path, "--json", PYTHONPATH=str(tmp_path / "broken"))
    assert "Traceback" not in done.stderr
    assert done.returncode == code
    found = json.loads(done.stdout)
    assert found["can_tune"] is (code == 0)
    everything = json.dumps(found)
    assert "libnothing.so.1 is missing" in everything
    if code == 0:
        entry = next(entry for entry in found["advice"] if said in entry["problem"] or broken in entry["problem"])
        assert entry["remedy"].startswith("pip install --force-reinstall --no-deps")
    else:
        assert found["sentence"].startswith(said)


def test_one_that_ends_its_process_is_reported_and_the_others_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fatal_module.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    (tmp_path / "chatty_module.py").write_text("print('[\"json\", null]')\n")
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ImportTrials(["chatty_module", "fatal_module", "json", "no_such_module"]) as trials:
        assert trials.problem("json") == ""
        assert trials.problem("chatty_module") == ""
        assert "signal 9" in trials.problem("fatal_module")
        assert "No module named" in trials.problem("no_such_module")
    with ImportTrials(["slow_module", "csv"], limit_s=0.5) as trials:
        assert "within" in trials.problem("csv")
        assert "within" in trials.problem("slow_module")


def test_every_extra_says_what_needs_it() -> None:
    base, extras = requirements()
    assert set(extras) == set(EXTRAS)
    assert "torch" in {one.name for one in base}
    assert {one.name for one in extras["openvino"]} == {"openvino", "nncf"}


def test_versions_are_held_against_what_whet_needs() -> None:
    assert installed(Requirement("pydantic>=2")).problem == ""
    assert "whet needs >=999" in installed(Requirement("pydantic>=999")).problem
    assert installed(Requirement("no-such-package-at-all")).problem == "not installed"


def found_with(**parts: Any) -> Checkup:
    """Return what doctor found on an imaginary machine."""
    return Checkup(**{"whet": "0", "python": "3", "system": "Linux", "required": (), "extras": (), **parts})


def test_each_problem_comes_with_what_to_do() -> None:
    torch = Package(name="torch", wanted=">=2.13", problem="not installed")
    nncf = Package(name="nncf", wanted=">=3.4", problem="not installed")
    broken = Package(name="openvino", wanted=">=2026.4", version="2026.4", problem="does not import: ImportError: no")
    auditor = Package(name="whet-audit", wanted="==0.1.0", problem="not installed")
    extra = Extra(name="openvino", gives="the technique openvino", packages=(nncf, broken))
    entries = list(_on_packages(found_with(required=(torch, auditor), extras=(extra,))))
    assert [(entry.remedy, entry.is_essential) for entry in entries] == [
        ("pip install 'torch>=2.13'", True),
        ("in a clone of whet: pip install ./packages/whet-audit", True),
        ("pip install 'torch-whet[openvino]', or in a clone of whet: pip install '.[openvino]'", False),
        ("pip install --force-reinstall --no-deps 'openvino>=2026.4'", False),
    ]
    problem = "torch compiles with g++, which is not installed: install it (Debian: apt install g++)"
    compiler = Compiler(purpose="torch.compile", problem=problem)
    (entry,) = _on_compilers(found_with(compilers=(compiler,)))
    assert problem in f"{entry.problem}: {entry.remedy}"
    state = State(
        busy="other processes used 2.0 of 2 cores", foreign_cores=2.0, governor="powersave", is_on_battery=True
    )
    places = (
        Place(purpose="temporary files", path="/tmp", is_writable=False),
        Place(purpose="results (whet-out)", path="/data", free_bytes=10**8),
    )
    entries = list(_on_machine(found_with(state=state, places=places)))
    assert all(entry.remedy and entry.problem and entry.concerns for entry in entries)
    assert [entry.is_essential for entry in entries] == [False, False, False, True, False]
    whole = found_with(state=state, places=places, advice=tuple(entries))
    assert not whole.can_tune
    for text in (str(whole), whole._repr_html_()):
        for entry in entries:
            assert entry.remedy in text


def test_names_of_users_and_hosts_are_replaced() -> None:
    hide = Anonymiser("/home/ada", "ada", "lovelace.example.org")
    assert hide.text("/home/ada/.cache/whet") == "~/.cache/whet"
    assert hide.text("/tmp/torchinductor_ada") == "/tmp/torchinductor_USER"
    assert hide.text("tcp://lovelace:1 and lovelace.example.org") == "tcp://HOST:1 and HOST"
    assert hide.text("/home/adam/adaptive") == "/home/adam/adaptive"
    nobody = Anonymiser("/", "root", "localhost")
    assert nobody.text("/root localhost root") == "/root localhost root"
    found = found_with(
        places=(Place(purpose="ada", path="/home/ada/x"),),
        environment={"TMPDIR": "/home/ada/tmp"},
        advice=(Advice(concerns="x", problem="/home/ada/y is full", remedy="ask ada"),),
    )
    text = str(hide.model(found, names=module._FROM_OUTSIDE))
    assert "~/x" in text
    assert "~/tmp" in text
    assert "~/y is full" in text
    assert "ask USER" in text


def test_secrets_in_the_environment_are_not_shown() -> None:
    shown = environment(
        {
            "OMP_NUM_THREADS": "4",
            "TORCHINDUCTOR_CACHE_DIR": "/x",
            "WHET_API_KEY": "s3cret",
            "HF_TOKEN": "s3cret",
            "WHET_STORAGE": "postgresql://me:s3cret@db/whet",
            "HOME": "/home/ada",
            "AWS_SECRET_ACCESS_KEY": "s3cret",
        }
    )
    assert shown["OMP_NUM_THREADS"] == "4"
    assert set(shown) == {"OMP_NUM_THREADS", "TORCHINDUCTOR_CACHE_DIR", "WHET_API_KEY", "HF_TOKEN", "WHET_STORAGE"}
    assert "s3cret" not in " ".join(shown.values())


@pytest.mark.parametrize("extra", ["", "docs", *EXTRAS])
def test_each_installed_package_has_the_module_that_is_tried(extra: str) -> None:
    """The module is looked up, and not imported, which takes half a minute for all of them."""
    needed = [Requirement(text) for text in importlib.metadata.requires(DISTRIBUTION) or ()]
    names = {one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": extra})}
    there = {found.name for found in map(installed, map(Requirement, names)) if found.version}
    assert [name for name in sorted(there) if importlib.util.find_spec(module_of(name)) is None] == []
    assert {"torch", "tomli-w"} <= there


def test_extras_for_developers_are_not_reported() -> None:
    _, extras = requirements()
    assert set(extras) == set(EXTRAS)


def test_the_page_is_wrapped_at_spaces_and_loses_nothing() -> None:
    nncf = Package(name="nncf", wanted=">=3.4", problem="not installed")
    extra = Extra(name="openvino", gives="the technique openvino", packages=(nncf,))
    whole = found_with(advice=tuple(_on_packages(found_with(extras=(extra,)))))
    assert max(map(len, str(whole).splitlines())) > 80
    for columns in (60, 80, 120):
        lines = whole.text(columns).splitlines()
        assert all(len(line) <= columns or " " not in line.strip() for line in lines)
        assert " ".join(whole.text(columns).split()) == " ".join(str(whole).split())
    assert repr(whole) == f"Checkup({whole.sentence})"
