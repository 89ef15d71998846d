"""What ranks tell each other by files: where all end, and that all have refused."""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from whet.scripts.injection.agreed_end import AgreedEnd
from whet.scripts.injection.rank_place import RankPlace, problem_of


@given(ahead=st.lists(st.booleans(), min_size=40, max_size=40), enough=st.integers(1, 12))
def test_ranks_end_after_the_same_step(ahead: list[bool], enough: int) -> None:
    """Rank 1 may be anywhere up to one step ahead of rank 0: in the backward of its next step, it waits for rank 0."""
    with tempfile.TemporaryDirectory() as directory:
        places = [RankPlace(Path(directory) / f"rank-{rank}", True, rank, 2, 2) for rank in range(2)]
        ends = [AgreedEnd(place) for place in places]
        steps, ended = [0, 0], [0, 0]
        for is_first in ahead:
            rank = 0 if is_first else 1
            if ended[rank] or (rank == 1 and steps[1] > steps[0]) or (rank == 0 and steps[0] > steps[1]):
                rank = 1 - rank
            if ended[rank]:
                break
            steps[rank] += 1
            if ends[rank].is_reached(steps[rank], has_enough=rank == 0 and steps[0] >= enough):
                ended[rank] = steps[rank]
    assert ended == [enough + 1, enough + 1]


def test_one_process_ends_where_it_has_enough(tmp_path: Path) -> None:
    end = AgreedEnd(RankPlace(tmp_path / "rank-0", True))
    assert [end.is_reached(step, has_enough=step == 3) for step in (1, 2, 3)] == [False, False, True]


def test_a_rank_refuses_with_the_others_and_its_launcher_reports_no_failure(tmp_path: Path) -> None:
    places = [tmp_path / f"rank-{rank}" for rank in range(2)]
    for place in places:
        place.mkdir()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(RankPlace(places[0], True, 0, 2, 2).refuse, "not here")
        time.sleep(0.2)
        assert not first.done()
        assert RankPlace(places[1], True, 1, 2, 2).refuse("nor there") == first.result() == 0
    assert problem_of(tmp_path) == "not here"
    assert RankPlace(places[0], True, 0, 4, 2, num_machines=2).refuse("not here") == 2, (
        "so that other machines hear of it"
    )
    assert RankPlace(tmp_path).refuse("not here") == 2
