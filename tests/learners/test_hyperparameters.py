"""Impossible settings are refused in a sentence, and episodes are counted right."""

import math

import pytest

from epcx.errors import InputError
from epcx.learners import Hyperparameters


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ({"learning_rate": 0.0}, "learning-rate 0.0 is not a number above 0, up to 1"),
        ({"learning_rate": math.nan}, "learning-rate nan"),
        ({"discount": 1.5}, "discount 1.5"),
        ({"target_rate": -0.1}, "target-rate -0.1"),
        ({"gradient_norm": math.inf}, "gradient-norm inf is not a number above 0"),
        ({"logit_penalty": math.nan}, "logit-penalty nan"),
        ({"logit_penalty": -1.0}, "logit-penalty -1.0"),
        ({"batch": 0}, "batch 0 is not a whole number of at least 1"),
        ({"worlds": -3}, "worlds -3"),
        ({"steps_per_update": 0}, "steps-per-update 0"),
        ({"warm_up": 0}, "warm-up 0"),
        ({"precision": "fp8"}, "unknown precision 'fp8': there are float32, tf32, bf16"),
    ],
)
def test_impossible_settings_are_refused(setting, complaint):
    with pytest.raises(InputError, match=complaint):
        Hyperparameters(**setting)


def test_a_batch_that_the_replay_cannot_fill_is_refused():
    with pytest.raises(InputError, match="batch 1024 is larger than replay 100"):
        Hyperparameters(replay=100).updates(4000, horizon=25)


def test_episodes_and_updates():
    """25,600 samples warm up: 1,024 episodes of 25 steps; then an update per 4 episodes."""
    hyper = Hyperparameters()
    assert hyper.updates(4000, horizon=25) == (4000 - 1024) // 4
    assert hyper.episodes(744, horizon=25) == 4000
    with pytest.raises(InputError, match="episodes 1000 end before the first update: use at least"):
        hyper.updates(1000, horizon=25)
    assert hyper.updates(1028, horizon=25) == 1
