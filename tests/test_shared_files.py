"""whet-audit installs without whet, so both hold a few small files. Each is the same in both."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WHET, AUDIT = ROOT / "src/whet", ROOT / "packages/whet-audit/src/whet_audit"
SHARED = {
    "ui/page_style/tokens.css": "formats/tokens.css",
    "ui/page_style/base.css": "formats/base.css",
    "ui/html_tables.py": "html_tables.py",
    "ui/card_sections.py": "card_sections.py",
    "ui/workflow_commands.py": "workflow_commands.py",
}


@pytest.mark.parametrize(("of_whet", "of_audit"), SHARED.items())
def test_both_packages_hold_the_same(of_whet: str, of_audit: str) -> None:
    assert (WHET / of_whet).read_bytes() == (AUDIT / of_audit).read_bytes(), f"copy {of_whet} to {of_audit}, or back"
