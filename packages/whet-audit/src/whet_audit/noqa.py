"""Comments that silence findings: `# noqa`, `# noqa: SYN101, MOV`, `# whet: noqa`, `# whet: noqa: CODE`.

`# noqa` counts for the statement it stands on, at its first or its last line, or on the line of the finding itself.
`# whet: noqa` on a line of its own counts for the whole file, behind code as `# noqa` does. Codes of other tools are
no concern of ours. As ruff has it, `# noqa:` followed by no code silences nothing.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass, field

from whet_audit.collect import SourceFile
from whet_audit.finding import Finding

_NOQA = re.compile(
    r"#\s*(?P<ours>whet\s*:\s*)?noqa(?P<colon>\s*:\s*(?P<codes>[A-Z]+[0-9]*(?:[,\s]+[A-Z]+[0-9]+|\s*,\s*[A-Z]+)*)?)?"
    r"(?![\w-])",
    re.IGNORECASE,
)
_CODE = re.compile(r"[A-Z]{3}[0-9]*")
_EVERYTHING = ("",)  # the prefix of all codes
_LAYOUT = (tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)


@dataclass
class _Silenced:
    """Prefixes of codes for the whole file and for lines; of each line the first and the last of its statement."""

    everywhere: list[str] = field(default_factory=list)
    at: dict[int, list[str]] = field(default_factory=dict)
    statement: dict[int, tuple[int, int]] = field(default_factory=dict)

    def covers(self, finding: Finding) -> bool:
        first, last = self.statement.get(finding.span.line, (finding.span.line, finding.span.line))
        lines = {first, last, finding.span.line}
        if finding.span.end_line <= last:
            lines.add(finding.span.end_line)
        prefixes = [*self.everywhere, *(prefix for line in lines for prefix in self.at.get(line, ()))]
        return finding.code.startswith(tuple(prefixes))


def without_silenced(findings: Iterable[Finding], files: Iterable[SourceFile]) -> list[Finding]:
    """The findings that no comment silences. Lines are those of `text`, for notebooks as well."""
    by_path = {file.path: file for file in files}
    read: dict[str, _Silenced | None] = {}
    kept = []
    for finding in findings:
        if finding.path not in read:
            file = by_path.get(finding.path)
            read[finding.path] = None if file is None or "noqa" not in file.text.lower() else _read(file.text)
        silenced = read[finding.path]
        if silenced is None or not silenced.covers(finding):
            kept.append(finding)
    return kept


def _read(text: str) -> _Silenced:
    """Find the comments, and what they stand on. Only for files that have a finding and the word: it takes a while."""
    silenced = _Silenced()
    first = 0  # of the statement that is being read; 0 between statements
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
            line = token.start[0]
            if token.type == tokenize.COMMENT:
                _note(silenced, token.string, line, is_alone=not first)
            elif token.type == tokenize.NEWLINE:
                for number in range(first or line, line + 1):
                    silenced.statement[number] = (first or line, line)
                first = 0
            elif token.type not in _LAYOUT and not first:
                first = line
    except (tokenize.TokenError, SyntaxError):  # what was read so far counts
        pass
    return silenced


def _note(silenced: _Silenced, comment: str, line: int, *, is_alone: bool) -> None:
    for found in _NOQA.finditer(comment):
        if found["colon"] is None:
            prefixes = list(_EVERYTHING)
        else:
            given = re.split(r"[,\s]+", (found["codes"] or "").upper())
            prefixes = [code for code in given if _CODE.fullmatch(code)]
        if found["ours"] and is_alone:
            silenced.everywhere += prefixes
        else:
            silenced.at.setdefault(line, []).extend(prefixes)
