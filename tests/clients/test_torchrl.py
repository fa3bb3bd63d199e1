"""TorchRL's rollouts: what they hold is what a plain loop sees with the same actions.

TorchRL groups agents by the part of their names before the number, hands over actions of all of
them, also of those who have left, and masks these.
"""

import numpy as np
import pytest
import torch
from torchrl.envs.libs.pettingzoo import PettingZooWrapper
from torchrl.envs.utils import check_env_specs

from tests.clients.environments import DEADLY, ENVIRONMENTS, PlainLoop

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PettingZoo in TorchRL is tested using version"),
]

STEPS, SEED = 120, 3


def wrap(env, **options):
    return PettingZooWrapper(env, use_mask=True, done_on_any=False, **options)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environment_passes_the_check_of_torchrl(name):
    check_env_specs(wrap(ENVIRONMENTS[name](), return_state=True), seed=0)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_rollout_holds_what_a_plain_loop_sees(name):
    env = wrap(ENVIRONMENTS[name]())
    env.set_seed(SEED)
    rollout = env.rollout(STEPS, break_when_any_done=False)

    def of_all(*key):
        """[steps, agents, ...], in the order of the groups."""
        prefix, last = key[:-1], key[-1]
        return torch.cat([rollout[*prefix, group, last] for group in env.group_map], 1).numpy()

    loop = PlainLoop(ENVIRONMENTS[name](), SEED)
    assert [name for group in env.group_map.values() for name in group] == loop.agents
    for time, actions in enumerate(of_all("action")):
        alive = loop.alive
        np.testing.assert_array_equal(of_all("mask")[time], alive)
        np.testing.assert_allclose(of_all("observation")[time][alive], loop.observation[alive])
        rewards, terminations, truncations = loop.step(actions)
        np.testing.assert_allclose(
            of_all("next", "reward")[time, :, 0], rewards, rtol=1e-6, atol=1e-6
        )
        np.testing.assert_allclose(of_all("next", "observation")[time], loop.observation)
        for key, expected in (("terminated", terminations), ("truncated", truncations)):
            found = of_all("next", key)[time, :, 0]
            np.testing.assert_array_equal(found[alive], expected[alive])
            assert found[~alive].all()
        over = not loop.env.agents
        assert rollout["next", "done"][time].item() == over
        if over:
            loop.reset()
    assert of_all("mask").all() != (name in DEADLY)
    assert rollout["next", "done"].sum() >= 4
