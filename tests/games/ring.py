"""A game as others may write one: outside the package, no particles, only what is required.

Runners and catchers move on a ring of cells, which is lit or dark. In the dark nobody sees the
runners. Catchers can only go forward.
"""

import jax
import jax.numpy as jnp
import numpy as np

from epcx.games import Entities, Game, Observation, Outcome, Role

CELLS = 8
MOVES = np.array([0, 1, -1])  # stay, forward, back


class Ring(Game):
    name = "ring"
    roles = (Role("runner", 3), Role("catcher", 2))
    stages = ("2-1", "4-2")
    horizon = 4

    def reset(self, key):
        cells, light = jax.random.split(key)
        return {
            "cell": jax.random.randint(cells, (self.num_agents,), 0, CELLS),
            "lit": jax.random.bernoulli(light),
        }

    def step(self, key, world, actions):
        cell = (world["cell"] + jnp.asarray(MOVES)[actions.argmax(1)]) % CELLS
        runners, catchers = (cell[members] for members in self.members.values())
        caught = runners[:, None] == catchers[None]
        reward = jnp.concatenate([-caught.sum(1), caught.sum(0)]).astype(jnp.float32)
        shaping = jnp.full(self.num_agents, -0.1) * world["lit"]
        done = jnp.zeros(self.num_agents, bool)
        return {"cell": cell, "lit": jax.random.bernoulli(key)}, Outcome(reward, shaping, done)

    def observe(self, world):
        """Entities are seen at 1 to 8 cells ahead, the agent itself too: that slot is masked."""
        cell, lit = world["cell"], world["lit"]
        ahead = ((cell[None] - cell[:, None] - 1) % CELLS + 1).astype(jnp.float32)
        others = jnp.asarray(~np.eye(self.num_agents, dtype=bool))
        runners, catchers = self.members.values()
        own = jnp.stack([cell / CELLS, jnp.broadcast_to(lit, cell.shape)], 1)
        return Observation(
            own,
            {
                "runners": Entities(ahead[:, runners, None], others[:, runners] & lit),
                "catchers": Entities(
                    jnp.stack([ahead, ahead**2], 2)[:, catchers], others[:, catchers]
                ),
            },
        )
