"""Every hint to install whet names the distribution torch-whet, and extras that it has: `whet` is somebody else's."""

import re
import tomllib
from pathlib import Path

import pytest

import whet_audit
from whet.errors import DISTRIBUTION, how_to_install

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_TEXTS = {".py", ".pyi", ".md", ".ipynb", ".toml", ".html", ".js", ".j2"}
_ANOTHER = re.compile(r"(?<![\w./-])whet\[[a-z{]|pip install (?:--?\S+ )*['\"]?whet(?![\w.{-])")
_EXTRAS = re.compile(rf"(?:{DISTRIBUTION}|pip install (?:\./\S+ )*['\"]\.(?:/[\w-]+)?)\[([a-z,]+)\]")


def wrong_hints(text: str) -> list[str]:
    """Return the hints of a text that name another distribution, or an extra that there is not."""
    extras = {*PROJECT["optional-dependencies"]}
    return [
        *(found[0] for found in _ANOTHER.finditer(text)),
        *(found[0] for found in _EXTRAS.finditer(text) if not {*found[1].split(",")} <= extras),
    ]


def test_the_project_has_the_name_that_messages_give() -> None:
    assert PROJECT["name"] == DISTRIBUTION == "torch-whet"
    assert PROJECT["scripts"] == {"whet": "whet.cli:main"}
    assert how_to_install("hf") == "pip install 'torch-whet[hf]', or in a clone of whet: pip install '.[hf]'"


def test_whet_asks_for_the_auditor_of_its_own_repository() -> None:
    auditor = tomllib.loads((ROOT / "packages/whet-audit/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"{auditor['name']}=={auditor['version']}" in PROJECT["dependencies"]
    assert auditor["version"] == PROJECT["version"] == whet_audit.__version__
    assert auditor["scripts"] == {"whet-audit": "whet_audit.cli:main"}


def test_no_hint_names_another_distribution_or_an_unknown_extra() -> None:
    places = [*ROOT.glob("*.md"), ROOT / "pyproject.toml"]
    places += [path for folder in ("src", "docs", "examples", "packages") for path in (ROOT / folder).rglob("*")]
    texts = {path: path.read_text(encoding="utf-8") for path in places if path.suffix in _TEXTS}
    assert len(texts) > 500
    assert {str(path): wrong for path, text in texts.items() if (wrong := wrong_hints(text))} == {}


@pytest.mark.parametrize(
    "hint",
    [
        "pip install whet",
        "pip install --upgrade 'whet[hf]'",
        'needs "whet[serve]"',
        "pip install 'torch-whet[servers]'",
        "pip install '.[onnx,opnvino]'",
        "pip install ./packages/whet-audit '.[onnx,opnvino]'",
    ],
)
def test_a_wrong_hint_is_found(hint: str) -> None:
    assert wrong_hints(hint)


@pytest.mark.parametrize(
    "text",
    ["pip install 'torch-whet[hf,onnx]'", "pip install torch-whet", "pip install ./packages/x '.[all]'"],
)
def test_a_right_hint_is_left_alone(text: str) -> None:
    assert wrong_hints(text) == []
