"""IPPO as JaxMARL's `baselines/IPPO/ippo_ff_mpe.py` has it: weights shared by all agents, agents
and environments stacked on one axis, actions handed back as arrays of one number.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState
from jaxmarl.wrappers.baselines import LogWrapper

NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCHES = 32, 64, 4, 4
GAMMA, GAE_LAMBDA, CLIP, ENTROPY, VALUE, LEARNING_RATE = 0.99, 0.95, 0.2, 0.01, 0.5, 2.5e-3


class ActorCritic(nn.Module):
    num_actions: int

    @nn.compact
    def __call__(self, x):
        actor = nn.tanh(nn.Dense(64)(nn.tanh(nn.Dense(64)(x))))
        critic = nn.tanh(nn.Dense(64)(nn.tanh(nn.Dense(64)(x))))
        logits = nn.Dense(self.num_actions, kernel_init=nn.initializers.orthogonal(0.01))(actor)
        return jax.nn.log_softmax(logits), nn.Dense(1)(critic)[..., 0]


class Transition(NamedTuple):
    """[actors, ...]; `infos` are the environment's."""

    done: jax.Array
    action: jax.Array
    value: jax.Array
    reward: jax.Array
    log_prob: jax.Array
    observation: jax.Array
    infos: dict


def batchify(values, agents):
    """{agent: [envs, ...]} as [agents x envs, features], padded where agents differ."""
    width = max(x.shape[-1] if x.ndim > 1 else 1 for x in values.values())
    rows = [values[name].reshape(NUM_ENVS, -1) for name in agents]
    rows = [jnp.pad(row, ((0, 0), (0, width - row.shape[1]))) for row in rows]
    return jnp.stack(rows).reshape(len(agents) * NUM_ENVS, -1)


def unbatchify(values, agents):
    """[agents x envs] as {agent: [envs, 1]}."""
    return dict(zip(agents, values.reshape(len(agents), NUM_ENVS, -1), strict=True))


def make_train(env, updates):
    """A function of a key: the train state at the end, and infos [updates, steps, actors]."""
    env = LogWrapper(env)
    agents, actors = env.agents, env.num_agents * NUM_ENVS
    network = ActorCritic(env.action_space(agents[0]).n)

    def act(params, observation):
        return network.apply(params, observation)

    def env_step(carry, key):
        train_state, env_state, last = carry
        act_key, step_key = jax.random.split(key)
        observation = batchify(last, agents)
        log_probs, value = act(train_state.params, observation)
        action = jax.random.categorical(act_key, log_probs)
        log_prob = jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0]
        keys = jax.random.split(step_key, NUM_ENVS)
        last, env_state, reward, done, infos = jax.vmap(env.step)(
            keys, env_state, unbatchify(action, agents)
        )
        infos = jax.tree.map(lambda x: x.reshape(actors), infos)
        done, reward = (batchify(x, agents)[:, 0] for x in (done, reward))
        transition = Transition(done, action, value, reward, log_prob, observation, infos)
        return (train_state, env_state, last), transition

    def advantages(batch, last_value):
        def backwards(carry, step):
            following, value = carry
            delta = step.reward + GAMMA * value * (1 - step.done) - step.value
            following = delta + GAMMA * GAE_LAMBDA * (1 - step.done) * following
            return (following, step.value), following

        begin = (jnp.zeros_like(last_value), last_value)
        return jax.lax.scan(backwards, begin, batch, reverse=True)[1]

    def loss(params, batch, advantage):
        target = advantage + batch.value
        log_probs, value = act(params, batch.observation)
        log_prob = jnp.take_along_axis(log_probs, batch.action[:, None], 1)[:, 0]
        ratio = jnp.exp(log_prob - batch.log_prob)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
        actor = -jnp.minimum(ratio * advantage, clipped).mean()
        return actor + VALUE * jnp.square(value - target).mean() - ENTROPY * entropy

    def update(carry, key):
        rollout_key, shuffle_key = jax.random.split(key)
        carry, batch = jax.lax.scan(env_step, carry, jax.random.split(rollout_key, NUM_STEPS))
        train_state, env_state, last = carry
        last_value = act(train_state.params, batchify(last, agents))[1]
        learned = batch._replace(infos={}), advantages(batch._replace(infos={}), last_value)
        learned = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), learned)

        def epoch(train_state, key):
            order = jax.random.permutation(key, NUM_STEPS * actors).reshape(MINIBATCHES, -1)

            def minibatch(train_state, rows):
                gradient = jax.grad(loss)(
                    train_state.params, *jax.tree.map(lambda x: x[rows], learned)
                )
                return train_state.apply_gradients(grads=gradient), None

            return jax.lax.scan(minibatch, train_state, order)[0], None

        keys = jax.random.split(shuffle_key, EPOCHS)
        train_state, _ = jax.lax.scan(epoch, train_state, keys)
        return (train_state, env_state, last), batch.infos

    def train(key):
        init_key, reset_key, train_key = jax.random.split(key, 3)
        last, env_state = jax.vmap(env.reset)(jax.random.split(reset_key, NUM_ENVS))
        params = network.init(init_key, batchify(last, agents))
        optimiser = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(LEARNING_RATE))
        train_state = TrainState.create(apply_fn=network.apply, params=params, tx=optimiser)
        carry = train_state, env_state, last
        carry, infos = jax.lax.scan(update, carry, jax.random.split(train_key, updates))
        return carry[0], infos

    return train
