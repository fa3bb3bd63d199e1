"""MADDPG's config: invalid options are refused, and episodes are counted in updates."""

import math

import jaxtyping
import numpy as np
import pytest

from epcx.errors import InputError
from epcx.learners import MADDPGConfig
from epcx.learners.maddpg_config import BOUNDS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0.0}, "learning-rate 0.0 is not a number from 1e-12 to 1"),
        ({"learning_rate": math.nan}, "learning-rate nan"),
        ({"gamma": 1.5}, "gamma 1.5"),
        ({"tau": -0.1}, "tau -0.1"),
        ({"max_grad_norm": math.inf}, "max-grad-norm inf is not a number from 1e-12 to 1e\\+06"),
        ({"learning_rate": 1e-45}, "learning-rate 1e-45 is not"),  # 0 in float32
        ({"gamma": 1e-40}, "gamma 1e-40"),
        ({"tau": True}, "tau True is not a number"),
        ({"max_grad_norm": 1e39}, "max-grad-norm 1e\\+39"),
        ({"logit_penalty": 1e300}, "logit-penalty 1e\\+300 is not 0 or a number from 1e-12"),
        ({"logit_penalty": 1e-45}, "logit-penalty 1e-45"),
        ({"learning_rate": "high"}, "learning-rate 'high' is not a number"),
        ({"batch_size": 2.5}, "batch-size 2.5 is not a whole number"),
        ({"logit_penalty": math.nan}, "logit-penalty nan"),
        ({"logit_penalty": -1.0}, "logit-penalty -1.0"),
        ({"batch_size": 0}, "batch-size 0 is too small: a whole number from 1 to 1000000000000"),
        ({"buffer_size": 10**400}, "buffer-size 10*0 is too large: a whole number from 1 to"),
        ({"buffer_size": 0}, "buffer-size 0"),
        ({"num_envs": -3}, "num-envs -3"),
        ({"steps_per_update": 0}, "steps-per-update 0"),
        ({"learning_starts": 0}, "learning-starts 0"),
        ({"network": "cnn"}, "unknown network 'cnn': there are attention, attention-separate, rel"),
        ({"clip_per": "layer"}, "unknown clip-per 'layer': there are network, variable"),
        ({"precision": "fp8"}, "unknown precision 'fp8': there are float32, tf32, bf16"),
    ],
)
def test_invalid_options_are_refused(options, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # which refuses other types
    with pytest.raises(InputError, match=message):
        MADDPGConfig(**options)


def test_bounds_are_normal_numbers_of_float32_and_are_allowed():
    for name, bounds in BOUNDS.items():
        for bound in bounds:
            assert np.finfo(np.float32).tiny < bound < np.finfo(np.float32).max
            assert getattr(MADDPGConfig(**{name: float(bound)}), name) == bound
    assert MADDPGConfig(logit_penalty=0.0).logit_penalty == 0


def test_batch_larger_than_the_buffer_is_refused():
    with pytest.raises(InputError, match="batch-size 1024 is larger than buffer-size 100"):
        MADDPGConfig(buffer_size=100).updates(4000, horizon=25)


def test_updates_and_episodes_convert_into_each_other():
    """Learning starts after 25,600 samples: 1,024 episodes of 25 steps; then 4 per update."""
    config = MADDPGConfig()
    assert config.updates(4000, horizon=25) == (4000 - 1024) // 4
    assert config.episodes(744, horizon=25) == 4000
    with pytest.raises(InputError, match="episodes 1000 end before the first update: use at least"):
        config.updates(1000, horizon=25)
    assert config.updates(1028, horizon=25) == 1
