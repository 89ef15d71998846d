"""Find docstrings that are no sentences, and parameters that are described in running prose.

`python tests/plain_docstrings.py PATH ...` lists them, one a line.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

IMPERATIVES = frozenset(
    """
    abort accept accumulate act adapt add adjust admit advance aggregate align allocate allow analyse announce answer
    append apply approximate arrange ask assemble assert assign attach attribute audit average await balance base
    begin bench bind bound break bring buffer build bundle cache calculate calibrate call cancel capture cast catch
    change check choose clamp classify clean clear clip close collapse collect combine compare compile complete
    compose compress compute concatenate configure confirm connect construct consume contain continue control convert
    copy correct count cover create cut deal decide declare decode decompress deduplicate define delay delete deliver
    derive describe detach detect determine disable discard disconnect dispatch display divide do document download
    draft drain draw drive drop dump duplicate embed emit empty enable encode end enforce enqueue ensure enter
    enumerate escape estimate evaluate evict examine exclude execute exit expand expect explain export express extend
    extract fail fall fetch fill filter find finish fit fix flag flatten flush fold follow forbid force forget fork
    format forward free freeze fuse gather generate get give go group guard guess hand handle hash hide hold identify
    ignore implement import improve include increment index infer inform initialise insert inspect install instrument
    interleave interpolate interpret interrupt invoke iterate join judge keep kill label launch lay leave let limit
    line link list listen load locate lock log look lower make map mark mask match materialise measure mend merge
    mirror model modify monitor move multiply name narrow normalise note notice notify number observe offer omit open
    order organise pack pad parse partition pass patch pause peek pick place plan play plot point poll post predict
    prefer prepare preserve prevent print probe process produce profile promise propagate propose protect prove
    provide prune publish pull push put quantise query queue quote raise rank read rebuild receive recognise recompute
    record recover redirect reduce refer refill refuse register reject release reload remember remove rename render
    reopen reorder repack repeat replace replay report represent reproduce request require rerank reserve reset
    reshape resolve respond restart restore restrict resume retrieve return reuse reverse review rewrite roll rotate
    round route run sample save say scale scan schedule score screen search see select send separate sequence
    serialise serve set settle shape share shift shorten shorthand show shrink shuffle shut signal silence simulate
    skip sleep slice smooth sort span spawn speculate split spread square stack stage stand start state stay step stop
    store stream strip submit subtract suggest sum summarise supply support suppress swap switch synchronise tabulate
    take talk teach tell terminate test throttle tie time tokenise touch trace track train translate transpose
    traverse treat trim try tune turn undo unload unpack unwrap update upload use validate verify visit wait wake walk
    warm warn watch weigh widen wrap write yield
    """.split()
)

# Verbs in the third person. Words that are nouns as well (steps, limits, calls) are left out: with them, a list of
# nouns would pass for a sentence.
FINITE = frozenset(
    """
    accepts adds allows answers appears applies are aren't arrives asks becomes begins belongs breaks brings builds
    can can't cannot carries chooses closes collects comes compares compiles computes consists contains continues
    converts copies could counts covers creates decides decodes defines deletes depends derives describes did differs
    divides do does doesn't don't draws drops ends ensures equals exists expects explains extends fails fills finds
    finishes fits flattens follows gathers generates gets gives goes grows had happens has have helps holds ignores
    includes is isn't joins keeps knows lacks learns leaves lets lies lives loads looks loses maintains makes maps
    matters may means measures meets merges might moves must names needs occupies occurs opens owns packs passes pays
    points predicts prints produces proves provides publishes puts quantises raises reaches reads receives records
    refers refuses rejects releases remains removes replaces reports represents requires resolves reuses runs says
    searches sees selects sends separates serves shall shares should shows sits sorts speaks splits stands starts
    stays stops stores streams subclasses subtracts supports takes tells tracks translates tries turns understands
    updates uses validates waits walks wants warns was watches were will won't works would wraps writes yields
    """.split()
)

# Words that begin a clause. The first verb after one of them belongs to the clause, and not to the sentence.
SUBORDINATE = frozenset(
    """that which who whose whom where what whatever when if whether how than because while why since until
    unless""".split()
)

# A sentence that begins with one of these has a clause as its subject, or none.
NO_SUBJECT = frozenset("as by how it of they what whatever where whether which who whose why".split())

SECTIONS = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Example|Examples|Note|Notes|Source|Sources):", re.M)


@dataclass(frozen=True)
class Fault:
    """Describe a docstring that breaks the rule.

    Attributes:
        path: The file.
        line: The line of the definition; 1 for a module.
        why: What is wrong.
        text: The text that it is wrong about.
    """

    path: str
    line: int
    why: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.why}: {self.text}"


def is_sentence(text: str) -> bool:
    """Return whether a text's first sentence has a subject and a verb, or begins with a verb in the imperative."""
    first = re.split(r"(?<=[.!?:;])\s", " ".join(text.split()), maxsplit=1)[0]
    words = [word.strip(".,:;()[]'\"").casefold() for word in re.sub(r"`[^`]*`", "it", first).split()]
    words = [word for word in words if word]
    if not words or words[0] in NO_SUBJECT:
        return False
    if words[0] in IMPERATIVES:
        return len(words) < 2 or words[1] != "of"
    if words[:2] in (["do", "not"], ["don't", "let"]):
        return True
    pending = 0
    for word in words:
        if word in SUBORDINATE:
            pending += 1
        elif word in FINITE:
            if not pending:
                return True
            pending -= 1
    return False


def faults(path: Path) -> Iterator[Fault]:
    """Yield what is wrong with the docstrings of a Python file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if text is None:
            continue
        line = 1 if isinstance(node, ast.Module) else node.lineno
        if not is_sentence(text):
            yield Fault(str(path), line, "no sentence", text.splitlines()[0])
        prose = SECTIONS.split(text, maxsplit=1)[0]
        for name in _names(node):
            if re.search(rf"(?<![\w.`]){re.escape(name)}: ", prose):
                yield Fault(str(path), line, "described in prose, not in a section", f"{name}: ")
        if match := re.search(r"(?:^|[.;] )Raises [A-Z]\w+", prose):
            yield Fault(str(path), line, "described in prose, not in a section", match[0].lstrip(".; "))


def _names(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the names of a function's parameters, or of a class's attributes."""
    if isinstance(node, ast.Module):
        return []
    if isinstance(node, ast.ClassDef):
        fields = [
            one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        ]
        made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        return fields + [name for one in made for name in _names(one) if name != "self"]
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [one.arg for one in every]


def main(paths: list[str]) -> int:
    """Print the faults of files and directories, and return 1 if there are any."""
    files = [file for path in map(Path, paths) for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    found = [fault for file in files for fault in faults(file)]
    for fault in found:
        print(fault)
    print(f"{len(found)} faults", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
