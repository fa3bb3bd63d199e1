"""What learners with networks by name have in common."""

import jax
from jaxtyping import Array, Bool, Float, Key, PyTree

from epcx.games import Outcome, World
from epcx.learners.learner import Learner
from epcx.learners.rollout import action_logits
from epcx.networks.agent import ARCHITECTURES, Architecture
from epcx.networks.kernels import precision


class NetworkLearner(Learner):
    """Its config names `network`, `neighbours`, `difference_rewards` and `precision`, its agents
    have a `policy`, and its state says whether it has `diverged`.
    """

    def __post_init__(self) -> None:
        self.game.check_neighbours(self.config.neighbours)
        if self.networks.equivariant:
            self.game.check_frame()
        if self.config.difference_rewards:
            self.game.check_difference_rewards()

    def learning_reward(self, outcome: Outcome) -> Float[Array, "agents batch"]:
        """What agents learn from, with shaping."""
        if self.config.difference_rewards:
            assert outcome.difference is not None
            return outcome.difference + outcome.shaping
        return outcome.reward + outcome.shaping

    def choose(
        self,
        policies: PyTree,
        views: PyTree,
        noise: Float[Array, "actions agents batch"],
        role: str | None = None,
    ) -> Float[Array, "actions agents batch"]:
        """Actions of all policies, or those of one role, by Gumbel noise."""
        raise NotImplementedError

    def act(
        self,
        key: Key[Array, ""],
        policies: PyTree,
        observation: PyTree,
        role: str | None = None,
        greedy: bool = False,
    ) -> Float[Array, "agents actions batch"]:
        """Samples of the policies, in training and in evaluation, unless `greedy`."""
        first = jax.tree.leaves(observation)[0]
        views = self.networks.to_features_first(observation)
        with precision(self.config.precision):
            if greedy:
                logits = action_logits(self.game, policies, views, role)
                return jax.nn.one_hot(logits.argmax(0), len(logits), axis=1)
            noise = jax.random.gumbel(key, (self.game.num_actions, len(first), first.shape[-1]))
            return self.choose(policies, views, noise, role).swapaxes(0, 1)

    def observe(self, worlds: World, role: str | None = None) -> PyTree:
        seen = self.networks.observe(self.game, worlds)
        return seen if role is None else jax.tree.map(lambda x: x[self.game.members[role]], seen)

    def policies(self, agents: PyTree) -> PyTree:
        return agents.policy

    def diverged(self, state: PyTree) -> Bool[Array, "*matches"]:
        return state.diverged

    @property
    def networks(self) -> Architecture:
        return ARCHITECTURES[self.config.network].with_neighbours(self.config.neighbours)

    @property
    def architecture(self) -> str:
        return self.config.network

    @property
    def any_population(self) -> bool:
        return self.networks.any_population
