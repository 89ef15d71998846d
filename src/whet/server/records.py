"""Check that records which say the same thing in two ways agree."""


def agree(what: str, first: object, second: object) -> None:
    """Raise AssertionError unless two records of something are equal."""
    if first != second:
        raise AssertionError(f"{what}: {first} and {second}")
