"""A process's part of a tensor lies where its piece says, also where two dimensions of a mesh divide the same one."""

import pytest
from many import on_ranks
from piece_jobs import taken_apart, whole

# The last ones leave processes without any row.
SHAPES = [(8, 4), (19, 4), (7, 6), (5, 2), (3, 2), (1, 2)]


@pytest.mark.parametrize("sizes", [(1, 2, 2), (2, 1, 2), (1, 3, 2)])
def test_pieces_make_up_the_whole_tensor(sizes: tuple[int, int, int]) -> None:
    answers = on_ranks(taken_apart, sizes[0] * sizes[1] * sizes[2], sizes, SHAPES)
    for name in answers[0]:
        rows, columns = map(int, name.split("_")[1:])
        covered = [[0] * columns for _ in range(rows)]
        for found in (answer[name] for answer in answers):
            assert found["is_whole"], name
            assert found["is_joined"], name
            assert found["taken"] == found["local"], name
            row, column = found["offset"]
            for down, values in enumerate(found["local"]):
                assert values == whole(rows, columns)[row + down, column : column + len(values)].tolist(), name
                for right in range(len(values)):
                    covered[row + down][column + right] += found["is_first_copy"]
        assert covered == [[1] * columns] * rows, f"{name}: a number is saved by no process, or by two"
