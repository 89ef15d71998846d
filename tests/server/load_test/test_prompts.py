from whet.server.load_test.prompts import Prompts


def test_prompts_are_random_and_the_same_for_the_same_seed() -> None:
    prompts = Prompts(50, seed=4)
    ids = [prompts.token_ids(index, 40) for index in range(50)]
    assert {len(prompt) for prompt in ids} == {40}
    assert {token_id for prompt in ids for token_id in prompt} == set(range(50))
    assert len({tuple(prompt) for prompt in ids}) == 50
    assert ids[7] == Prompts(50, seed=4).token_ids(7, 40)
    assert ids[7] != Prompts(50, seed=5).token_ids(7, 40)
    assert ids[7] != Prompts(50, seed=4, stream=1).token_ids(7, 40)


def test_a_shared_prefix_is_that_of_every_prompt_and_stream() -> None:
    first = Prompts(1000, shared_prefix=20, seed=1)
    other = Prompts(1000, shared_prefix=20, seed=1, stream=2)
    prefix = first.token_ids(0, 100)[:20]
    for prompts in (first, other):
        for index in range(5):
            ids = prompts.token_ids(index, 30)
            assert ids[:20] == prefix
            assert len(ids) == 30
    assert first.token_ids(1, 30)[20:] != first.token_ids(2, 30)[20:]
    assert first.token_ids(3, 12)[:11] == prefix[:11]
    assert len(first.token_ids(3, 1)) == 1
