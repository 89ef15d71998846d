"""Hold what `whet doctor` found, and show it as a page of text, as tables in a notebook, or as JSON."""

import textwrap
from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from whet.installation.packages import Extra, Package
from whet.measure.backends import Backend
from whet.ui.figures import DASH, num_bytes
from whet.ui.notebook import Shown

_WIDTH = 24  # of the names on the page


class Compiler(BaseModel):
    """Describe a C++ compiler.

    Attributes:
        purpose: Who calls it.
        command: Its path; "" for none.
        version: The first line of what it says of its version; "" where nobody asked.
        problem: Why a trial did not compile; "" where it did.
    """

    purpose: str
    command: str = ""
    version: str = ""
    problem: str = ""


class Hardware(BaseModel):
    """Describe the machine as this process may use it.

    Attributes:
        fingerprint: Of the machine; figures of machines with the same one can be compared.
        isa: The instruction sets that decide which kernels run.
        all_cores: Logical cores of the machine, where `cores` are those that this process may use.
        torch_threads: Threads that torch uses for one operator.
        cpu_quota: Cores' worth of time that the container gets; None without a limit.
        memory_limit: The container's limit in bytes; None without one.
        gpus: A line for each GPU that torch can use, or that the driver knows.
        gpu_driver: The driver's version and CUDA's; "" without a GPU.
        links: How the GPUs are connected; "" for not known.
    """

    fingerprint: str
    chip: str
    isa: tuple[str, ...]
    cores: int
    all_cores: int
    torch_threads: int
    cpu_quota: int | None
    memory_bytes: int
    memory_limit: int | None
    free_bytes: int
    gpus: tuple[str, ...] = ()
    torch_uses_gpus: bool = False
    gpu_driver: str = ""
    links: str = ""
    numa_nodes: int = 1


class MeasuredLimits(BaseModel):
    """Describe the limits that `whet limits` measured earlier; nothing is measured anew.

    Attributes:
        device: "cpu" or "cuda".
        gemm: Operations per second of matrix products, by dtype.
        read_bandwidth: Bytes per second from memory.
        busy: What disturbed the measurement; "" for a quiet machine.
    """

    device: str
    gemm: dict[str, float]
    read_bandwidth: float
    busy: str = ""


class State(BaseModel):
    """Describe what may disturb a measurement now.

    Attributes:
        busy: What disturbs, with the names of the processes; "" for a quiet machine.
        foreign_cores: Cores that other processes use.
        governor: What chooses the cores' frequency; "" for not known.
        mhz: The mean frequency of the cores; None for not known.
        is_on_battery: Whether the machine runs on its battery; None where it has none.
    """

    busy: str
    foreign_cores: float
    governor: str = ""
    mhz: float | None = None
    is_on_battery: bool | None = None


class Place(BaseModel):
    """Describe a directory that whet, or a library under it, writes to.

    Attributes:
        purpose: What is written there.
        path: The directory, with the home directory as ~.
        used_bytes: What its files take; None where it is not whet's own, or is not there yet.
        free_bytes: Free on its file system; None for not known.
    """

    purpose: str
    path: str
    used_bytes: int | None = None
    free_bytes: int | None = None
    is_writable: bool = True


class Advice(BaseModel):
    """Describe one thing that is missing or wrong.

    Attributes:
        concerns: The command or the technique that needs it.
        is_essential: Whether whet cannot tune without it.
    """

    concerns: str
    problem: str
    remedy: str
    is_essential: bool = False


class Checkup(Shown, BaseModel):
    """Hold everything that `whet doctor` found.

    Attributes:
        whet: Its version.
        system: The operating system and the kind of processor.
        required: The packages that whet cannot do without.
        backends: With what processes that train together can communicate.
        hardware: The machine; None where it could not be read.
        limits: What was measured earlier, by device.
        state: What may disturb a measurement now; None where it could not be read.
        environment: The variables that change how fast a model runs, or where files go. Secrets are hidden.
    """

    format: int = 1
    whet: str
    python: str
    system: str
    required: tuple[Package, ...]
    extras: tuple[Extra, ...]
    compilers: tuple[Compiler, ...] = ()
    backends: tuple[Backend, ...] = ()
    hardware: Hardware | None = None
    limits: tuple[MeasuredLimits, ...] = ()
    state: State | None = None
    places: tuple[Place, ...] = ()
    environment: dict[str, str] = {}
    advice: tuple[Advice, ...] = ()

    @property
    def can_tune(self) -> bool:
        """Return whether nothing essential is missing or broken."""
        return not any(entry.is_essential for entry in self.advice)

    @property
    def sentence(self) -> str:
        """Return the outcome in one sentence."""
        broken = [entry.problem for entry in self.advice if entry.is_essential]
        if broken:
            return f"whet cannot tune here: {'; '.join(broken)}."
        if not self.advice:
            return "whet can tune here, and nothing is missing."
        entries = "1 thing" if len(self.advice) == 1 else f"{len(self.advice)} things"
        return f"whet can tune here; {entries} could be better, as listed at the end."

    def sections(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Yield the page's sections: a title, and rows of a name and what is known of it."""
        yield "versions", [("whet", self.whet), ("python", f"{self.python}, {self.system}"), *_required(self.required)]
        yield "extras", [(extra.name, _extra(extra)) for extra in self.extras]
        yield "compilers", [(compiler.purpose, _compiler(compiler)) for compiler in self.compilers]
        yield "training on several processes", [(backend.name, backend.told) for backend in self.backends]
        yield "machine", list(_hardware(self.hardware)) if self.hardware else []
        yield "measured limits", [(found.device, _limits(found)) for found in self.limits]
        yield "now", list(_state(self.state)) if self.state else []
        yield "where files go", [(place.purpose, _place(place)) for place in self.places]
        yield "environment", list(self.environment.items())

    def text(self, columns: int | None = None) -> str:
        """Return the page, with lines wrapped at spaces to so many columns; None leaves them as long as they are."""
        lines = [(f"whet doctor: {self.sentence}", 0)]
        for title, rows in self.sections():
            if rows:
                lines += [("", 0), (title, 0), *((f"  {name:<{_WIDTH}}{value}", 2 + _WIDTH) for name, value in rows)]
        lines += [("", 0), ("what is missing for which command, and what to do", 0)]
        for entry in self.advice:
            essential = "ESSENTIAL: " if entry.is_essential else ""
            lines += [(f"  {essential}{entry.concerns}: {entry.problem}", 4), (f"    -> {entry.remedy}", 7)]
        if not self.advice:
            lines.append(("  nothing", 0))
        return "\n".join(_wrapped(line, indent, columns) for line, indent in lines)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"Checkup({self.sentence})"


def _required(packages: Sequence[Package]) -> Iterator[tuple[str, str]]:
    """Yield a row for torch and for each package that has a problem, and one for all others."""
    others = []
    for package in packages:
        if package.problem or package.name == "torch":
            yield package.name, ", ".join(part for part in (package.version, package.problem) if part)
        else:
            others.append(f"{package.name} {package.version}")
    if others:
        yield "what whet needs", ", ".join(others)


def _extra(extra: Extra) -> str:
    parts = [", ".join(f"{one.name} {one.version}" for one in extra.packages if not one.problem)]
    parts += [" ".join(part for part in (one.name, one.version, one.problem) if part) for one in extra.unusable]
    return f"{'; '.join(part for part in parts if part)} (for {extra.gives})"


def _compiler(compiler: Compiler) -> str:
    outcome = f"FAILS: {compiler.problem}" if compiler.problem else "a trial compiles"
    return ", ".join(part for part in (compiler.command, compiler.version, outcome) if part)


def _hardware(found: Hardware) -> Iterator[tuple[str, str]]:
    yield "fingerprint", found.fingerprint
    yield "processor", found.chip
    yield "instruction sets", ", ".join(found.isa) or "not known"
    quota = "" if found.cpu_quota is None else f"; the container's quota is {found.cpu_quota}"
    yield "cores", f"{found.cores} of {found.all_cores}; torch uses {found.torch_threads} threads{quota}"
    limit = "" if found.memory_limit is None else f"; the container's limit is {num_bytes(found.memory_limit)}"
    yield "memory", f"{num_bytes(found.memory_bytes)}, {num_bytes(found.free_bytes)} free{limit}"
    if found.numa_nodes > 1:
        yield "NUMA nodes", str(found.numa_nodes)
    for gpu in found.gpus:
        yield "GPU", gpu if found.torch_uses_gpus else f"{gpu}; torch cannot use it"
    if not found.gpus:
        yield "GPU", "none"
    if found.gpu_driver:
        yield "GPU driver", found.gpu_driver
    if found.links:
        yield "links", found.links


def _limits(found: MeasuredLimits) -> str:
    rates = [f"{dtype} {rate / 1e9:,.0f} GFLOP/s" for dtype, rate in found.gemm.items()]
    busy = [f"measured on a busy machine: {found.busy}"] if found.busy else []
    return "; ".join([", ".join([*rates, f"memory {found.read_bandwidth / 1e9:,.0f} GB/s"]), *busy])


def _state(found: State) -> Iterator[tuple[str, str]]:
    yield "load", f"too busy to measure: {found.busy}" if found.busy else "quiet enough to measure"
    clock = DASH if found.mhz is None else f"{found.mhz:,.0f} MHz"
    yield "clock", f"{clock}, governor {found.governor or 'not known'}"
    battery = {None: "no battery", True: "on battery", False: "on mains"}
    yield "power", battery[found.is_on_battery]


def _place(place: Place) -> str:
    used = "" if place.used_bytes is None else f"{num_bytes(place.used_bytes)} used"
    free = "" if place.free_bytes is None else f"{num_bytes(place.free_bytes)} free"
    return ", ".join(part for part in (place.path, used, free, "" if place.is_writable else "NOT WRITABLE") if part)


def _wrapped(line: str, indent: int, columns: int | None) -> str:
    """Return a line broken at spaces, with what follows indented; words and paths stay whole."""
    if columns is None or len(line) <= columns:
        return line
    start = len(line) - len(line.lstrip())
    wrapped = textwrap.wrap(
        line.lstrip(),
        max(columns, indent + 20),
        initial_indent=line[:start],
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(wrapped)
