"""The list of the second tier names tests that are there: one that was renamed would be in the first tier unseen."""

import re
from pathlib import Path

import second_tier

ROOT = Path(__file__).parents[1]


def test_each_line_names_a_test() -> None:
    for line in second_tier.LIST.read_text(encoding="utf-8").splitlines():
        file, _, name = line.partition("::")
        function = name.partition("[")[0]
        assert re.search(rf"^(async )?def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), line


def test_what_a_user_meets_first_is_in_the_first_tier() -> None:
    listed = second_tier.LIST.read_text(encoding="utf-8")
    assert not second_tier.KEPT.search(listed)
    assert "test_the_snippets_run[README.md]" not in listed
