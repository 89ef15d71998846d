"""Parses all files once, runs every rule over each, and gives the findings in order."""

from __future__ import annotations

import ast
import gc
import os
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from whet_audit.collect import Problem, SourceFile, does_not_parse
from whet_audit.constants import Constants
from whet_audit.finding import Confidence, Finding, Hit, Priority
from whet_audit.hot_paths import HotPaths
from whet_audit.project import Project
from whet_audit.rule_context import RuleContext
from whet_audit.rules import RULES, Rule
from whet_audit.source import Module
from whet_audit.type_inference import TypeInference
from whet_audit.written_settings import SUFFIXES, WrittenSettings

_OF_WHOLE_LOOPS = "INF"  # the family that speaks of all that an inference does, however often a loop of it runs

# Files that people run once in a while: conversions, quantisers, exports, and comparisons with slow code on purpose.
_OFFLINE = re.compile(
    r"(^|/)(conver(t|ts|ters?|sions?)|quanti[sz](e|ers?|ation)|export(s|ers?)?|onnx|calibration|benchmarks?|comparisons?|"
    r"maintenance)/|(^|/)(bench|benchmarks?|compare|comparison|convert|export|quanti[sz]e|upload|update_hub)(_\w+)?\.py$|"
    r"_(bench|benchmarks?|comparison)\.py$"
)


@dataclass(frozen=True)
class Audit:
    """Findings sorted by file, line and code; files that could not be read as Python."""

    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...]


def inspect_files(files: Sequence[SourceFile], codes: Collection[str] | None = None) -> Audit:
    """Run the rules of the codes (all, without any) over files that belong together, files of settings among them."""
    with _without_collections():
        return _inspect(files, codes)


def _inspect(files: Sequence[SourceFile], codes: Collection[str] | None) -> Audit:
    modules, problems = [], []
    root = _root(files)
    settings = WrittenSettings(file.text for file in files if file.path.endswith(SUFFIXES))
    for file in files:
        if file.path.endswith(SUFFIXES):
            continue
        try:
            modules.append(_parse(file, root))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            problems.append(does_not_parse(file, error))
    findings: list[Finding] = []
    rules = {code: rule for code, rule in RULES.items() if codes is None or code in codes}
    for context in rule_contexts(modules, settings):
        findings += _findings(context, rules)
    findings.sort(key=lambda finding: (finding.path, finding.span, finding.code))
    return Audit(tuple(findings), tuple(problems))


def rule_contexts(modules: Sequence[Module], settings: WrittenSettings | None = None) -> Iterator[RuleContext]:
    """What rules see of each module that uses PyTorch. settings: what files beside the code set."""
    project = Project(modules)
    kinds = TypeInference(project)
    constants = Constants(project)
    hot_paths = HotPaths(project, kinds, constants, settings)
    for module in modules:
        if module.uses_torch or any(function in hot_paths.functions for function in module.functions):
            yield RuleContext(module, project, kinds, hot_paths, constants)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Keep Python from going through all trees for garbage again and again: they stay till the end."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _root(files: Sequence[SourceFile]) -> Path:
    """The folder that all files lie in; of a package, the one around it."""
    folders = {Path(file.path).absolute().parent for file in files}
    root = Path(os.path.commonpath(folders)) if folders else Path()
    while (root / "__init__.py").is_file() and root.name:
        root = root.parent
    return root


def _parse(file: SourceFile, root: Path) -> Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes in the code that is read
        path = Path(file.path)
        place = path.absolute().relative_to(root).as_posix()
        is_package = path.name == "__init__.py"
        return Module(file.path, file.text, module_name(path), is_package=is_package, place=place)


def module_name(path: Path) -> str:
    """Dotted, from the outermost folder upwards that is a package."""
    parts = [] if path.name == "__init__.py" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder.name:
        parts.insert(0, folder.name)
        folder = folder.parent
    if len(parts) < 2 and folder.name and path.name != "__init__.py":  # a folder without __init__ may be a package too
        parts = [part for part in (*path.parent.parts[-2:], path.stem) if part.isidentifier()] or [path.stem]
    return ".".join(parts) or path.stem


def _findings(context: RuleContext, rules: Mapping[str, Rule]) -> Iterator[Finding]:
    for code, rule in rules.items():
        seen: set[ast.AST] = set()
        for hit in rule.check(context):
            if hit.at not in seen:
                seen.add(hit.at)
                yield _complete(context, code, rule, hit)


def _complete(context: RuleContext, code: str, rule: Rule, hit: Hit) -> Finding:
    priority, confidence = hit.priority or rule.PRIORITY, hit.confidence
    if hit.hot is not None and hit.hot.guard:
        priority = Priority.LOW
    if hit.hot is not None and (hit.hot.guard or hit.hot.no_step) and not code.startswith(_OF_WHOLE_LOOPS):
        confidence = Confidence.LOW
    return Finding(
        code=code,
        name=rule.NAME,
        path=context.module.path,
        span=context.span(hit.at),
        message=hit.message,
        priority=priority,
        confidence=confidence,
        gain=hit.gain,
        hot=hit.hot,
        fix=hit.fix,
        is_offline=_OFFLINE.search(context.module.place) is not None,
    )
