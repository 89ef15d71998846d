"""Stop strings: nothing of one is ever shown, whatever the tokens are cut into."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from whet.server.stopping import OutputText

PIECES = st.lists(st.text(alphabet="abc", max_size=3), max_size=12)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3).map(tuple)


class Pieces:
    """A detokenizer: token i is the i-th piece; a piece of its own comes at the end."""

    def __init__(self, pieces: list[str], tail: str = "") -> None:
        self._pieces, self._tail = pieces, tail

    def add(self, token_ids: Sequence[int]) -> str:
        return "".join(self._pieces[token_id] for token_id in token_ids)

    def finish(self) -> str:
        return self._tail


@given(PIECES, STOPS, st.text(alphabet="abc", max_size=2))
def test_the_text_before_the_first_stop_string(pieces: list[str], stops: tuple[str, ...], tail: str) -> None:
    output, shown, whole = OutputText(Pieces(pieces, tail), stops), "", ""
    for i, piece in enumerate(pieces):
        shown += output.add(i)
        whole += piece
        places = [whole.find(stop) for stop in stops if stop in whole]
        assert output.is_stopped is bool(places)
        if places:
            assert shown == whole[: min(places)]
            assert output.rest() == ""
            return
        assert whole.startswith(shown)
        assert len(whole) - len(shown) < max(map(len, stops), default=1)  # no more held back than could become one
    shown += output.rest()
    whole += tail
    places = [whole.find(stop) for stop in stops if stop in whole]
    assert shown == (whole[: min(places)] if places else whole)


def test_not_before_it_may() -> None:
    output = OutputText(Pieces(["a stop", " b", " stop", " c"]), ("stop",))
    assert output.add(0, may_stop=False) == "a stop"
    assert output.add(1) == " b"
    assert not output.is_stopped
    assert output.add(2) == " "
    assert output.is_stopped
