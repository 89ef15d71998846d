"""Hold the rules and terminals of a grammar, for whoever writes a part of it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from whet.server.schemas.forms import Child, Form, SchemaRefused, Text
from whet.server.schemas.reading import Reader

_MOST_RULES = 20_000


class Rules(ABC):
    """Collect the rules of one schema. A part of it asks for what it holds by the abstract methods."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._rules = list[str]()
        self._terminals = dict[str, str]()
        self._num_fresh = 0

    def rule(self, name: str, *alternatives: str) -> str:
        """Add a rule, and return its name."""
        self._rules.append(f"{name}: {' | '.join(alternatives)}")
        if len(self._rules) > _MOST_RULES:
            raise SchemaRefused(f"its grammar has more than {_MOST_RULES} rules: write a smaller schema")
        return name

    def fresh(self, kind: str) -> str:
        """Return a name for a rule that no other rule has."""
        self._num_fresh += 1
        return f"{kind}{self._num_fresh}"

    def terminal(self, body: str) -> str:
        """Return the name of a terminal with this body."""
        return self._terminals.setdefault(body, f"T{len(self._terminals)}")

    @abstractmethod
    def value(self, child: Child) -> str:
        """Return the name of the rule of a child."""

    @abstractmethod
    def can_be(self, child: Child | None) -> bool:
        """Return whether a child has any value."""

    @abstractmethod
    def allow(self, child: Child | None) -> bool:
        """Return whether a child that was made up has any value. What is inside it is known already."""

    @abstractmethod
    def alternative(self, form: Form) -> str:
        """Return the body of a rule of a form; "" where it has no value."""

    @abstractmethod
    def texts(self, forms: Sequence[Text]) -> str:
        """Return the body of texts of several forms."""
