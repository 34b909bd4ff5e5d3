"""The counters of a run."""

from primus.engine.checkpoint.state import TrainState


def test_an_iteration_counts_what_it_trained_and_what_it_passed_over() -> None:
    state = TrainState(iteration=3, consumed_train_samples=24)
    state.advance(samples=8, skipped_samples=2)
    assert state == TrainState(iteration=4, consumed_train_samples=32, skipped_train_samples=2)


def test_counters_survive_their_plain_form() -> None:
    state = TrainState(iteration=4, consumed_train_samples=32, consumed_valid_samples=7)
    assert TrainState.from_dict(state.to_dict()) == state


def test_names_of_other_versions_are_passed_over() -> None:
    assert TrainState.from_dict({"iteration": 2, "from_the_future": 1}) == TrainState(iteration=2)
