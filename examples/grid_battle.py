"""A battle of two armies on a grid: a game outside the package, which is no particle game.

    epcx train examples.grid_battle:GridBattle --preset quick
    epcx replay runs/grid-battle-16-16-epc-seed0 --out battle.html

Every soldier has three hit points. In a step it stays, moves to a neighbouring cell (soldiers
block each other), or attacks: all enemies within one cell, diagonals included, lose a hit point
together. Whoever has none left is dead.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from epcx.games import Entities, Game, Observation, Outcome, Role, Scene, keep_nearest

HIT_POINTS = 3
MOVES = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])  # stay, and four neighbours
ATTACK = len(MOVES)  # the last action
HIT_REWARD, KILL_REWARD = 1.0, 5.0
SHAPING = 0.05  # per cell of distance to the nearest enemy


class Battlefield(eqx.Module):
    """The state of a battle."""

    cell: Int[Array, "agents 2"]
    hit_points: Int[Array, "agents"]


class BattleEvents(eqx.Module):
    """What happened in a step."""

    hits: Int[Array, "agents"]  # enemies hit by the agent
    killed: Int[Array, "agents"]  # deaths that it had a part in
    died: Bool[Array, "agents"]


class GridBattle(Game):
    name = "grid-battle"
    roles = (
        Role("red", num_actions=ATTACK + 1, colour="#d9534a", size=0.04),
        Role("blue", num_actions=ATTACK + 1, colour="#4f8fd9", size=0.04),
    )
    stages = ("4-4", "8-8", "16-16")
    horizon = 20
    symmetric = True
    statistics = {
        "hits": "enemies hit per episode",
        "killed": "parts in kills per episode",
        "died": "deaths per episode",
    }
    rules = (
        "Soldiers stay, move to a neighbouring cell, or attack all enemies within one cell.",
        "Each hit gives +1 and takes -1; three hits kill, which gives +5 to all who hit last.",
        "Shaping: -0.05 x distance in cells to the nearest living enemy.",
    )

    @property
    def side(self) -> int:
        """Cells along each side: the field grows with the armies."""
        return max(6, 2 * round(1.5 * self.num_agents**0.5))

    @property
    def enemies(self) -> Bool[np.ndarray, "agents agents"]:
        team = np.repeat([0, 1], self.population.counts)
        return team[:, None] != team[None, :]

    def reset(self, key: Key[Array, ""]) -> Battlefield:
        """Red starts in the left half, blue in the right one, each soldier in a cell of its own."""
        half = self.side // 2
        cells = np.stack(np.divmod(np.arange(half * self.side), self.side), 1)
        keys = jax.random.split(key)
        armies = [
            jax.random.permutation(k, jnp.asarray(cells))[:count]
            for k, count in zip(keys, self.population.counts, strict=True)
        ]
        offset = jnp.array([half, 0])
        cell = jnp.concatenate([armies[0], armies[1] + offset])
        return Battlefield(cell, jnp.full(self.num_agents, HIT_POINTS))

    def step(
        self, key: Key[Array, ""], world: Battlefield, actions: Float[Array, "agents actions"]
    ) -> tuple[Battlefield, Outcome]:
        alive, choice = self.alive(world), actions.argmax(1)
        cell = self.move(world, jnp.where(alive & (choice < ATTACK), choice, 0))

        near = jnp.abs(cell[:, None] - cell[None]).max(-1) <= 1
        hit = near & self.enemies & alive[:, None] & alive[None] & (choice == ATTACK)[:, None]
        hit_points = jnp.maximum(world.hit_points - hit.sum(0), 0)
        died = alive & (hit_points == 0)
        killed = (hit & died[None]).sum(1)

        gained = HIT_REWARD * hit.sum(1) + KILL_REWARD * killed
        lost = HIT_REWARD * (world.hit_points - hit_points) + KILL_REWARD * died
        after = Battlefield(cell, hit_points)
        outcome = Outcome(
            reward=gained - lost,
            shaping=-SHAPING * self.distance_to_enemy(after),
            done=~self.alive(after),
            events=BattleEvents(hit.sum(1), killed, died),
        )
        return after, outcome

    def move(self, world: Battlefield, choice: Int[Array, "agents"]) -> Int[Array, "agents 2"]:
        """Everybody moves at once; a cell that two want, or where somebody stands, is taken."""
        wanted = jnp.clip(world.cell + jnp.asarray(MOVES)[choice], 0, self.side - 1)
        alive, others = self.alive(world), ~np.eye(self.num_agents, dtype=bool)
        clash = (wanted[:, None] == wanted[None]).all(-1)
        clash = clash | (wanted[:, None] == world.cell[None]).all(-1)
        blocked = (clash & alive[None] & others).any(1)
        return jnp.where(blocked[:, None], world.cell, wanted)

    def distance_to_enemy(self, world: Battlefield) -> Float[Array, "agents"]:
        """In cells, for the living; 0 if no enemy is left."""
        alive = self.alive(world)
        far = 2.0 * self.side
        apart = jnp.abs(world.cell[:, None] - world.cell[None]).max(-1).astype(jnp.float32)
        nearest = jnp.where(self.enemies & alive[None], apart, far).min(1)
        return jnp.where(alive & (nearest < far), nearest, 0.0)

    def alive(self, world: Battlefield) -> Bool[Array, "agents"]:
        return world.hit_points > 0

    def observe(self, world: Battlefield) -> Observation:
        """Own place, hit points; of the living others relative place and hit points."""
        alive, scale = self.alive(world), 4.0  # cells that count as far
        place = world.cell / (self.side - 1) * 2 - 1
        health = world.hit_points[:, None] / HIT_POINTS
        own = jnp.concatenate([place, health, alive[:, None]], 1)
        relative = (world.cell[None] - world.cell[:, None]) / scale
        adjacent = jnp.abs(relative).max(-1, keepdims=True) * scale <= 1
        theirs = jnp.broadcast_to(health[None], (*relative.shape[:2], 1))
        features = jnp.concatenate([relative, adjacent, theirs], -1)

        def of(mask: Bool[np.ndarray, "agents agents"]) -> Entities:
            seen = jnp.asarray(mask) & alive[None]
            return Entities(jnp.where(seen[..., None], features, 0.0), seen)

        teammates = ~self.enemies & ~np.eye(self.num_agents, dtype=bool)
        return Observation(own, {"teammates": of(teammates), "enemies": of(self.enemies)})

    def positions(self, world: Battlefield) -> Float[Array, "agents 2"]:
        return world.cell.astype(jnp.float32)

    def observe_nearest(self, world: Battlefield, k: int) -> Observation:
        seen, place = self.observe(world), self.positions(world)
        squared = ((place[:, None] - place[None]) ** 2).sum(-1)
        nearest = {name: keep_nearest(x, squared, k) for name, x in seen.entities.items()}
        return Observation(seen.own, nearest)

    def scene(self, world: Battlefield) -> Scene:
        return Scene((world.cell + 0.5) / self.side * 2 - 1)

    def scripted(self, key: Key[Array, ""], world: Battlefield) -> Float[Array, "agents actions"]:
        """Attack if an enemy is near; else walk towards the nearest one."""
        apart = jnp.abs(world.cell[:, None] - world.cell[None]).max(-1)
        apart = jnp.where(self.enemies & self.alive(world)[None], apart, 2 * self.side)
        dx, dy = (world.cell[apart.argmin(1)] - world.cell).T
        along_x = jnp.abs(dx) >= jnp.abs(dy)
        walk = jnp.where(along_x, jnp.where(dx > 0, 1, 2), jnp.where(dy > 0, 3, 4))
        return jax.nn.one_hot(jnp.where(apart.min(1) <= 1, ATTACK, walk), ATTACK + 1)
