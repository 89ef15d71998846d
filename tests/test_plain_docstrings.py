"""Every docstring of the house is a sentence."""

from pathlib import Path

import pytest

from plain_docstrings import faults, is_sentence

SOURCE = Path(__file__).parents[1] / "src/whet"


@pytest.mark.parametrize(
    "text",
    [
        "Of whet.",
        "One of them.",
        "As JSON.",
        "it goes when the last who knows it goes",
        "innermost but for nothing",
        "Whether a graph quantises anywhere.",
        "What the CPU plugin is told.",
        "A program that torch.compile compiles at its first call.",
        "A temporary directory with an ONNX model",
        "Count of samples.",
        "The limits of a machine, and the steps of a recipe.",
        "",
    ],
)
def test_fragments_are_found(text: str) -> None:
    assert not is_sentence(text)


@pytest.mark.parametrize(
    "text",
    [
        "Return whet's version.",
        "Describe one served model.",
        "Return the report as a JSON-serialisable dict.",
        "Start the keep-alive timer as soon as a client connects.",
        "Compare: one claim, whatever is measured.",
        "A recipe is an ordered list of techniques.",
        "A sample that fits is queued.",
        "Do not call this twice.",
    ],
)
def test_sentences_pass(text: str) -> None:
    assert is_sentence(text)


def test_parameters_in_prose_are_found(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text(
        '"""Sum."""\ndef f(rows):\n    """Sum rows. rows: numbers. Raises ValueError."""\n\n\n'
        'def g(rows):\n    """Sum rows.\n\n    Args:\n        rows: The numbers.\n    """\n\n\n'
        'class C:\n    """Hold a size. size: in bytes."""\n\n    size: int\n'
    )
    found = [(fault.line, fault.text) for fault in faults(file) if fault.why != "no sentence"]
    assert sorted(found) == [(2, "Raises ValueError"), (2, "rows: "), (14, "size: ")]


def test_no_docstring_of_the_house_is_a_fragment() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 400
    assert [str(fault) for path in files for fault in faults(path)] == []
