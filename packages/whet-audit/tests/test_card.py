from whet_audit.card import read_card
from whet_audit.finding import Priority
from whet_audit.rules import RULES

DOC = """MOV101 blocking-transfer: a copy that
    the CPU waits for.

    Finds       `x.to(device)` inside
                a loop.
    Why slow    It waits: always.
    Example     for x in loader:
                    x = x.to(device)
    Fix         safe.
    """


def test_a_card_in_sections() -> None:
    card = read_card("MOV101", "blocking-transfer", Priority.HIGH, DOC)
    assert card.title == "A copy that the CPU waits for."
    assert dict(card.sections) == {
        "Finds": "`x.to(device)` inside\na loop.",
        "Why slow": "It waits: always.",
        "Example": "for x in loader:\n    x = x.to(device)",
        "Fix": "safe.",
    }


def test_no_card() -> None:
    card = read_card("MOV101", "blocking-transfer", Priority.HIGH, None)
    assert (card.title, dict(card.sections)) == ("", {})


def test_every_rule_has_a_card_that_can_be_read() -> None:
    for code, rule in RULES.items():
        card = read_card(code, rule.NAME, rule.PRIORITY, rule.__doc__)
        assert card.title, code
        assert {"Finds", "Why slow", "Example", "Instead", "Gain", "Fix", "Source"} <= set(card.sections), code
        assert all(card.sections.values()), code
