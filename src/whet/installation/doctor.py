"""Find out what is installed here, what works, and what is missing for which command (whet.doctor)."""

import importlib.metadata
import os
import platform
import shlex
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import chain
from typing import Any

from whet import __version__
from whet.errors import how_to_install, named_reason
from whet.installation.checkup import Advice, Checkup, Hardware, Place, State
from whet.installation.packages import (
    EXTRAS,
    Extra,
    ImportTrials,
    Package,
    checked,
    installed,
    module_of,
    requirements,
)
from whet.installation.privacy import Anonymiser, environment
from whet.measure.backends import backends
from whet.measure.fast_import import import_large

_LEAST_FREE_BYTES = 2 * 10**9  # what tuning a large model, with its trials, may take on disk
_TUNING = "every command"
_FROM_OUTSIDE = frozenset({"problem", "remedy", "path", "command", "environment"})
_OWN = {"whet-audit": "./packages/whet-audit"}  # packages of whet's repository, which no package index has


def doctor() -> Checkup:
    """Look at this installation and this machine, in some seconds, and say what is missing for which command.

    Nothing is installed and no limit is measured. What is returned can be shown to others: the home directory is
    written as ~, names of the user and the host are replaced, and values of secrets are left out.

    Returns:
        What was found. `can_tune` is False where something essential is broken; `str()` is the page of `whet doctor`.
    """
    found = Checkup(
        whet=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        required=(),
        extras=(),
        environment=environment(os.environ),
    )
    found = _with_packages(found)
    return Anonymiser.here().model(found, names=_FROM_OUTSIDE)


def _with_packages(found: Checkup) -> Checkup:
    """Add the packages, and what is found with them: while some are imported in a child, the machine is looked at."""
    advice: list[Advice] = []
    try:
        base, extras = requirements()
    except importlib.metadata.PackageNotFoundError:
        remedy = f"run `pip install {_OWN['whet-audit']} '.[all]'` in whet's own directory"
        advice.append(Advice(concerns=_TUNING, problem="whet runs from its source and is not installed", remedy=remedy))
        base, extras = [], {}
    required = [installed(one) for one in base]
    of_extras = {name: [installed(one) for one in chosen] for name, chosen in extras.items()}
    importable = [package for package in chain(required, *of_extras.values()) if not package.problem]
    modules = sorted({module_of(package.name) for package in importable} | {"torch"})
    modules.sort(key=lambda name: name != "torch")  # torch first: all that looks at the machine needs it
    with ImportTrials(modules) as trials:
        surroundings: dict[str, Any] = {}
        if torch_problem := trials.problem("torch"):
            if not base:
                required = [Package(name="torch", problem=f"does not import: {torch_problem}")]
        else:
            surroundings = _surroundings(advice)
        packages = {
            "required": checked(required, trials),
            "extras": tuple(
                Extra(name=name, gives=EXTRAS.get(name, name), packages=checked(chosen, trials))
                for name, chosen in sorted(of_extras.items())
            ),
        }
    found = found.model_copy(update={**packages, **surroundings})
    everything = (*_on_packages(found), *advice, *_on_compilers(found), *_on_machine(found))
    return found.model_copy(update={"advice": tuple(sorted(everything, key=lambda entry: not entry.is_essential))})


def _surroundings(advice: list[Advice]) -> dict[str, Any]:
    """Return what the machine, compilers, load and directories are. What cannot be read becomes an entry of advice."""
    try:
        surroundings = import_large("whet.installation.surroundings")
        describe = import_module("whet.measure.machine").describe
    except Exception as error:  # noqa: BLE001 - a package that is broken raises whatever it stumbles over
        problem = f"the machine cannot be looked at: {named_reason(error)}"
        remedy = "mend the packages that are named here, then run whet doctor again"
        advice.append(Advice(concerns=_TUNING, problem=problem, remedy=remedy, is_essential=True))
        return {}
    parts = {
        "hardware": lambda: surroundings.hardware(describe()),
        "limits": lambda: surroundings.limits(describe()),
        "compilers": surroundings.compilers,
        "backends": backends,
        "state": surroundings.state,
        "places": surroundings.places,
    }
    found = {}
    for name, look in parts.items():
        try:
            found[name] = look()
        except Exception as error:  # noqa: BLE001 - the page shows the rest all the same
            remedy = "this is a mistake in whet: please report it with this page"
            advice.append(Advice(concerns="whet doctor", problem=f"{name}: {named_reason(error)}", remedy=remedy))
    return found


def _on_packages(found: Checkup) -> Iterator[Advice]:
    for package in found.required:
        if package.problem:
            problem = f"{package.name} {package.problem}" if package.version else f"{package.name} is not installed"
            yield Advice(concerns=_TUNING, problem=problem, remedy=_remedy([package]), is_essential=True)
    for extra in found.extras:
        if missing := [package for package in extra.unusable if not package.version]:
            names = ", ".join(package.name for package in missing)
            verb = "is" if len(missing) == 1 else "are"
            if extra.name == "nvidia" and not (found.hardware and found.hardware.gpus):
                continue
            remedy = how_to_install(extra.name)
            yield Advice(concerns=extra.gives, problem=f"{names} {verb} not installed", remedy=remedy)
        for package in extra.unusable:
            if package.version:
                yield Advice(
                    concerns=extra.gives, problem=f"{package.name} {package.problem}", remedy=_remedy([package])
                )


def _remedy(packages: Sequence[Package]) -> str:
    """Return the pip command that mends them. Broken packages are installed again."""
    names = " ".join(_OWN.get(package.name) or shlex.quote(package.requirement) for package in packages)
    place = "in a clone of whet: " if any(package.name in _OWN for package in packages) else ""
    is_broken = any(package.problem.startswith("does not import") for package in packages)
    return f"{place}pip install {'--force-reinstall --no-deps ' if is_broken else ''}{names}"


def _on_compilers(found: Checkup) -> Iterator[Advice]:
    uses = {"torch.compile": "the techniques inductor and torch_compile", "whet's kernels": "whet serve and whet chat"}
    for compiler in found.compilers:
        if compiler.problem:
            what, _, remedy = compiler.problem.rpartition(": " if "; " not in compiler.problem else "; ")
            yield Advice(
                concerns=uses[compiler.purpose],
                problem=what or compiler.problem,
                remedy=remedy or "install a C++ compiler (Debian: apt install g++)",
            )


def _on_machine(found: Checkup) -> Iterator[Advice]:
    if found.hardware is not None:
        yield from _on_hardware(found.hardware)
    if found.state is not None:
        yield from _on_state(found.state)
    for place in found.places:
        yield from _on_place(place)
    if found.hardware is not None and not found.limits:
        remedy = "run `whet limits` on a quiet machine: about ten seconds, once"
        problem = "the machine's limits are not measured yet; the first command that needs them does it"
        yield Advice(concerns="whet tune, whet bench and whet profile", problem=problem, remedy=remedy)


def _on_hardware(hardware: Hardware) -> Iterator[Advice]:
    if hardware.gpus and not hardware.torch_uses_gpus:
        remedy = "install torch for CUDA, with the command that https://pytorch.org/get-started/locally/ shows"
        yield Advice(concerns="targets with ?device=cuda", problem="torch cannot use this machine's GPU", remedy=remedy)
    if hardware.torch_threads < hardware.cores and "OMP_NUM_THREADS" in os.environ:
        problem = f"OMP_NUM_THREADS lets torch use {hardware.torch_threads} of {hardware.cores} cores"
        yield Advice(concerns="every measurement", problem=problem, remedy="unset OMP_NUM_THREADS if that is not meant")


def _on_state(state: State) -> Iterator[Advice]:
    if state.busy:
        remedy = "end what runs beside it; or let the command wait: --busy-wait 10m"
        yield Advice(concerns="every measurement", problem=f"the machine is busy now: {state.busy}", remedy=remedy)
    if state.is_on_battery:
        remedy = "plug the power supply in before you measure"
        yield Advice(concerns="every measurement", problem="the machine runs on its battery", remedy=remedy)
    if "powersave" in state.governor:
        problem = f"the processor's frequency governor is {state.governor}, so times vary more"
        remedy = "sudo cpupower frequency-set --governor performance"
        yield Advice(concerns="every measurement", problem=problem, remedy=remedy)


def _on_place(place: Place) -> Iterator[Advice]:
    if not place.is_writable:
        is_essential = place.purpose == "temporary files"
        remedy = {
            "results (whet-out)": "go to another directory, or give --out",
            "whet's cache": "name a directory that can be written in WHET_CACHE",
            "torch.compile's cache": "name a directory that can be written in TORCHINDUCTOR_CACHE_DIR",
        }.get(place.purpose, "name a directory that can be written in TMPDIR")
        problem = f"{place.path} cannot be written"
        yield Advice(concerns=place.purpose, problem=problem, remedy=remedy, is_essential=is_essential)
    elif place.free_bytes is not None and place.free_bytes < _LEAST_FREE_BYTES:
        problem = f"{place.path} has {place.free_bytes / 1e9:.1f} GB left"
        remedy = f"free some space: tuning a large model may need {_LEAST_FREE_BYTES / 1e9:.0f} GB and more"
        yield Advice(concerns=place.purpose, problem=problem, remedy=remedy)
