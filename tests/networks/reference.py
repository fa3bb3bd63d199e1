"""Networks as slow loops in NumPy: the paper's, from its equations and figure 1, and others."""

from types import SimpleNamespace

import numpy as np

from tests.games.worlds import SYMMETRIES, transformed_actions


def relu(x):
    return np.maximum(x, 0)


def dense(layer, x):
    y = np.asarray(layer.weight, float) @ x
    return y if layer.bias is None else y + np.asarray(layer.bias, float)


def leaky_relu(x):
    return np.where(x > 0, x, 0.01 * x)


def mlp(network, x, activation=relu):
    for layer in network.layers[:-1]:
        x = activation(dense(layer, x))
    return dense(network.layers[-1], x)


def attention(query, keys, values):
    """Equations 4 and 5 over a list of entities; zeros for an empty one."""
    if not len(keys):
        return np.zeros(len(query))
    scores = np.array([query @ key for key in keys]) / np.sqrt(len(query))
    weights = np.exp(scores - scores.max())
    weights = weights / weights.sum()
    return sum(w * v for w, v in zip(weights, values, strict=True))


def layer_norm(x):
    return (x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean() + 1e-6)


def encode(encoder, view, agent):
    """Own embedding and one type embedding per entity type, of one agent's observation."""
    own = relu(mlp(encoder.own, np.asarray(view.own[agent], float)))
    parts = [own]
    for name in sorted(encoder.entities):
        features, mask = (np.asarray(x[agent]) for x in view.entities[name])
        embedded = [
            relu(mlp(encoder.entities[name], features[m].astype(float)))
            for m in range(len(mask))
            if mask[m]
        ]
        parts.append(relu(layer_norm(attention(own, embedded, embedded))))
    return np.concatenate(parts)


def logits(policy, view, agent):
    return mlp(policy.head, encode(policy.encoder, view, agent), leaky_relu)


def value(critic, game, view, actions, alive, agent):
    """Q of one agent (equation 3)."""

    def f(j):
        action = relu(dense(critic.action, np.asarray(actions[j], float)))
        return relu(
            dense(critic.combine, np.concatenate([encode(critic.encoder, view, j), action]))
        )

    role = np.repeat(np.arange(len(game.roles)), game.population.counts)
    embedded = [f(j) for j in range(game.num_agents)]
    parts = [relu(dense(critic.own, embedded[agent]))]
    groups = [lambda j: role[j] == role[agent] and j != agent]
    if len(game.roles) > 1:
        groups.append(lambda j: role[j] != role[agent])
    for number, belongs in enumerate(groups):
        module = number if len(critic.queries) > 1 else 0
        query = dense(critic.queries[module], embedded[agent])
        members = [embedded[j] for j in range(game.num_agents) if alive[j] and belongs(j)]
        mixed = attention(query, [dense(critic.keys[module], x) for x in members], members)
        parts.append(layer_norm(mixed))
    return mlp(critic.value, np.concatenate(parts), leaky_relu)[0]


def block(network, tokens, asking):
    """Self-attention with two heads and an MLP, around which the tokens are added."""
    normal = [layer_norm(token) for token in tokens]
    queries, keys, values = (
        [dense(layer, x) for x in normal] for layer in (network.query, network.key, network.value)
    )
    half = len(tokens[0]) // 2
    outputs = []
    for i in range(asking):
        heads = [
            attention(queries[i][part], [k[part] for k in keys], [v[part] for v in values])
            for part in (slice(0, half), slice(half, None))
        ]
        x = tokens[i] + dense(network.output, np.concatenate(heads))
        outputs.append(x + mlp(network.mlp, layer_norm(x)))
    return outputs


def relational_encode(encoder, view, agent):
    """What one agent sees: its own token after two blocks over itself and all it sees."""
    tokens = [mlp(encoder.own, np.asarray(view.own[agent], float))]
    for name in sorted(encoder.entities):
        features, mask = (np.asarray(x[agent]) for x in view.entities[name])
        tokens += [mlp(encoder.entities[name], x.astype(float)) for x in features[mask]]
    first, last = encoder.blocks
    (mine,) = block(last, block(first, tokens, len(tokens)), 1)
    return relu(layer_norm(mine))


def relational_logits(policy, view, agent):
    return mlp(policy.head, relational_encode(policy.encoder, view, agent), leaky_relu)


def relational_value(critic, game, view, actions, alive, agent):
    """Q of one agent; V of critics without actions."""
    mine = relational_encode(critic.encoder, view, agent)
    with_actions = hasattr(critic, "action")
    if with_actions:
        action = relu(dense(critic.action, np.asarray(actions[agent], float)))
        mine = relu(dense(critic.combine, np.concatenate([mine, action])))

    def embedded(j):
        own = [np.asarray(view.own[j], float)]
        features = [*own, np.asarray(actions[j], float)] if with_actions else own
        return relu(mlp(critic.others.embed, np.concatenate(features)))

    role = np.repeat(np.arange(len(game.roles)), game.population.counts)
    query, parts = dense(critic.others.query, mine), [mine]
    for same in (True, False)[: len(game.roles)]:
        members = [
            embedded(j)
            for j in range(game.num_agents)
            if alive[j] and j != agent and (role[j] == role[agent]) == same
        ]
        keys = [dense(critic.others.key, x) for x in members]
        parts.append(layer_norm(attention(query, keys, members)))
    return mlp(critic.value, np.concatenate(parts), leaky_relu)[0]


def in_frame(view, agent):
    """What all agents see after the symmetry that puts one of them where 0 <= y <= x; its matrix.

    Features are vectors, and maybe a number after them.
    """

    def turned(matrix, features):
        features = np.array(features, float)
        for i in range(0, features.shape[-1] - 1, 2):
            features[..., i : i + 2] = features[..., i : i + 2] @ matrix.T
        return features

    place = np.asarray(view.own[agent], float)[2:4]
    (matrix,) = (m for m in SYMMETRIES if 0 <= (m @ place)[1] <= (m @ place)[0])
    entities = {
        name: (turned(matrix, features), mask) for name, (features, mask) in view.entities.items()
    }
    return SimpleNamespace(own=turned(matrix, view.own), entities=entities), matrix


def equivariant_logits(policy, view, agent):
    turned, matrix = in_frame(view, agent)
    inverse = matrix.T
    return transformed_actions(relational_logits(policy, turned, agent)[None], inverse)[0]


def equivariant_value(critic, game, view, actions, alive, agent):
    """Q of one agent; V of critics without actions."""
    turned, matrix = in_frame(view, agent)
    if actions is not None:
        actions = transformed_actions(actions, matrix)
    return relational_value(critic, game, turned, actions, alive, agent)
