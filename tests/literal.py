"""Literal transcriptions of the paper's algorithms and formulas: oracles for the tests.

Everything here is slow and plain on purpose, and imports nothing of the package, so that an error
of the package cannot hide in its own oracle. Line and equation numbers are those of A. Dieuleveut,
G. Fort, E. Moulines and G. Robin, "Federated Expectation Maximization with heterogeneity mitigation
and variance reduction", NeurIPS 2021. Two things go beyond it: clients have weights w_i where the
paper writes 1/n, and `vr_fedem` has partial participation.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import sqrtm
from scipy.stats import multivariate_normal


class Parameters(NamedTuple):
    """Parameter of a Gaussian mixture, in scikit-learn's shapes."""

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray


class Round(NamedTuple):
    """What stands after round k: Ŝ_{k+1}, the V_{k+1,i}, V_{k+1} and the field H_{k+1}."""

    statistics: np.ndarray
    client_controls: list
    control: np.ndarray
    field: np.ndarray


# ---- the Gaussian mixture, Appendix F.1


def covariance_matrices(covariances, covariance_type, n_components, n_features):
    """One (d, d) matrix per component, from any of scikit-learn's shapes."""
    matrices = []
    for g in range(n_components):
        if covariance_type == "full":
            matrix = np.array(covariances[g])
        elif covariance_type == "tied":
            matrix = np.array(covariances)
        elif covariance_type == "diag":
            matrix = np.diag(covariances[g])
        elif covariance_type == "spherical":
            matrix = covariances[g] * np.eye(n_features)
        else:
            raise ValueError(f"unknown covariance_type {covariance_type!r}")
        matrices.append(matrix)
    return matrices


def joint_log_densities(rows, weights, means, covariances, covariance_type):
    """For each row, the list over g of log(π_g N(μ_g, Σ_g)[y])."""
    rows = np.asarray(rows, dtype=float)
    n_components, n_features = len(weights), rows.shape[1]
    matrices = covariance_matrices(covariances, covariance_type, n_components, n_features)
    components = [multivariate_normal(means[g], matrices[g]) for g in range(n_components)]
    return [
        [math.log(weights[g]) + float(components[g].logpdf(row)) for g in range(n_components)]
        for row in rows
    ]


def log_sum_exp(values):
    largest = max(values)
    return largest + math.log(sum(math.exp(value - largest) for value in values))


def log_likelihood(rows, weights, means, covariances, covariance_type):
    """Mean over the rows of log p(y; θ)."""
    joint = joint_log_densities(rows, weights, means, covariances, covariance_type)
    return sum(log_sum_exp(values) for values in joint) / len(joint)


def responsibilities(rows, weights, means, covariances, covariance_type):
    """The p_{i,l}(θ) of equation 58: for each row, the posterior probability of each component."""
    return [
        [math.exp(value - log_sum_exp(values)) for value in values]
        for values in joint_log_densities(rows, weights, means, covariances, covariance_type)
    ]


def features(row, covariance_type):
    """f(y): what a component's share of a row multiplies in the statistic."""
    one_and_y = [1.0, *row]
    d = len(row)
    if covariance_type == "tied":
        return np.array(one_and_y)
    if covariance_type == "diag":
        return np.array(one_and_y + [row[j] * row[j] for j in range(d)])
    if covariance_type == "spherical":
        return np.array([*one_and_y, sum(row[j] * row[j] for j in range(d))])
    if covariance_type == "full":
        return np.array(one_and_y + [row[j] * row[k] for j in range(d) for k in range(j, d)])
    raise ValueError(f"unknown covariance_type {covariance_type!r}")


def expected_statistics(rows, weights, means, covariances, covariance_type):
    """s̄ of the rows, (G, F): mean over the rows y of r_g(y) f(y) (equation 58)."""
    rows = np.asarray(rows, dtype=float)
    shares = responsibilities(rows, weights, means, covariances, covariance_type)
    total = 0.0
    for row, share in zip(rows, shares, strict=True):
        f = features(row, covariance_type)
        total = total + np.array([share[g] * f for g in range(len(weights))])
    return total / len(rows)


def normalised(row, covariance_type):
    """f(z) combined so that its functions of a standard normal z have covariance I."""
    d, functions = len(row), features(row, covariance_type)
    if covariance_type == "spherical":
        functions[-1] = (functions[-1] - d) / math.sqrt(2 * d)
    elif covariance_type != "tied":
        for position in range(1 + d, len(functions)):
            j = position - 1 - d
            if covariance_type == "full" and j not in np.cumsum([0, *range(d, 1, -1)]):
                continue  # z_j z_k has mean 0 and variance 1 already
            functions[position] = (functions[position] - 1) / math.sqrt(2)
    return functions


def component_units(theta, covariance_type, is_rest=False):
    """For each component g, A with √π_g A f(y) = `normalised(z)`, where y = μ_g + C z, C Cᵀ = Σ_g.

    Found from what it does to points, by least squares: it exists, and points enough tell it. Where
    the covariance is the rest of a known moment, it is times the fourth root of what noise costs.
    """
    n_components, d = theta.means.shape
    matrices = covariance_matrices(theta.covariances, covariance_type, n_components, d)
    points = np.random.default_rng(0).normal(size=(10 * (d + 1) ** 2, d))
    at_points = np.array([features(y, covariance_type) for y in points])
    units = []
    for g in range(n_components):
        root = np.linalg.cholesky(matrices[g])
        mapped = np.array(
            [normalised(np.linalg.solve(root, y - theta.means[g]), covariance_type) for y in points]
        )
        mapped = mapped / math.sqrt(theta.weights[g])
        map_of_functions = np.linalg.lstsq(at_points, mapped, rcond=None)[0].T
        if is_rest:
            center = np.linalg.solve(root, theta.means[g])
            cost = cost_of_noise(theta.weights[g], center)
            map_of_functions = sqrtm(sqrtm(cost)) @ map_of_functions
        units.append(map_of_functions)
    return np.array(units)


def cost_of_noise(weight, center):
    """Matrix of m² + |v|² + π/2 ||v tᵀ + t vᵀ + m t tᵀ||², a quadratic form in (m, v)."""

    def cost(noise):
        m, v = noise[0], noise[1:]
        moved = np.outer(v, center) + np.outer(center, v) + m * np.outer(center, center)
        return m**2 + v @ v + weight / 2 * (moved**2).sum()

    unit = np.eye(1 + len(center))
    return np.array(
        [[(cost(one + other) - cost(one) - cost(other)) / 2 for one in unit] for other in unit]
    )


def second_moment(rows):
    """Mean over the rows of y yᵀ."""
    total = 0.0
    for row in np.asarray(rows, dtype=float):
        total = total + np.outer(row, row)
    return total / len(rows)


def m_step(statistics, covariance_type, reg_covar=0.0, second_moment=None, fixed_covariance=None):
    """T: equations 60 to 62, and their analogues where each component has its covariance.

    `reg_covar`, a number or one per feature, is added to the variances; or a matrix to the
    covariances.
    """
    s = np.asarray(statistics, dtype=float)
    n_components = len(s)
    d = _n_features(s.shape[1], covariance_type)
    reg_covar = np.asarray(reg_covar, dtype=float)
    if reg_covar.ndim == 2:
        added = reg_covar
    else:
        reg_covar = np.broadcast_to(reg_covar, (d,))
        added = np.diag(reg_covar)

    s1 = [s[g, 0] for g in range(n_components)]
    s2 = [s[g, 1 : 1 + d] for g in range(n_components)]
    weights = np.array([s1[g] / sum(s1) for g in range(n_components)])  # equation 60
    means = np.array([s2[g] / s1[g] for g in range(n_components)])  # equation 61

    if fixed_covariance is not None:
        return Parameters(weights, means, np.array(fixed_covariance, dtype=float))
    if covariance_type == "tied":  # equation 62
        covariance = np.array(second_moment, dtype=float)
        for g in range(n_components):
            covariance = covariance - s1[g] * np.outer(means[g], means[g])
        return Parameters(weights, means, covariance + added)

    covariances = []
    for g in range(n_components):
        s3 = s[g, 1 + d :] / s1[g]
        if covariance_type == "full":
            covariance = np.zeros((d, d))
            position = 0
            for j in range(d):
                for k in range(j, d):
                    covariance[j, k] = s3[position] - means[g, j] * means[g, k]
                    covariance[k, j] = covariance[j, k]
                    position += 1
            covariances.append(covariance + added)
        elif covariance_type == "diag":
            covariances.append([s3[j] - means[g, j] ** 2 + reg_covar[j] for j in range(d)])
        else:  # spherical: the mean over the features of the variances
            variances = s3[0] - sum(means[g, j] ** 2 for j in range(d)) + sum(reg_covar)
            covariances.append(variances / d)
    return Parameters(weights, means, np.array(covariances))


def _n_features(length, covariance_type):
    """The d for which f(y) has this length."""
    for d in range(length):
        if len(features(np.zeros(d), covariance_type)) == length:
            return d
    raise ValueError(f"no {covariance_type!r} statistic has {length} columns")


def mixture_problem(clients, client_weights, covariance_type, reg_covar=0.0, fixed_covariance=None):
    """(client_statistics, m_step) of a mixture, as the algorithms below want them.

    The second moment of all clients is the weighted mean of the clients' own: what they send once.
    """
    moment = sum(w * second_moment(rows) for w, rows in zip(client_weights, clients, strict=True))

    def client_statistics(i, theta, batch):
        rows = clients[i] if batch is None else [clients[i][j] for j in batch]
        return expected_statistics(rows, *theta, covariance_type)

    def mixture_m_step(statistics):
        return m_step(statistics, covariance_type, reg_covar, moment, fixed_covariance)

    return client_statistics, mixture_m_step


# ---- the algorithms
#
# Their arguments:
#
# client_statistics(i, theta, batch)  mean over the batch (None: all rows) of client i's s̄_ij(θ)
# m_step(statistics)                  T
# start, controls                     Ŝ_0, and the list of the V_{0,i}
# client_weights                      the w_i
# step_sizes                          γ_1, γ_2, ..., one per round
# control_step, participation         α and p
# active_sets                         for each round, the clients that take part
# batches                             batches[round][i]: indexes of rows, or None for all
# quantise(round, i, vector, theta)   the compressed vector; θ is the round's
#
# Arrays are replaced, never changed in place: a Round that was given out stays as it was.


def client_fields(client_statistics, m_step, start, n_clients):
    """h_i(Ŝ_0) for each client: the V_{0,i} of Theorem 1."""
    theta = m_step(start)
    return [client_statistics(i, theta, None) - start for i in range(n_clients)]


def weighted_sum(client_weights, vectors):
    total = 0.0
    for w, vector in zip(client_weights, vectors, strict=True):
        total = total + w * vector
    return total


def fedem(
    client_statistics,
    m_step,
    start,
    controls,
    client_weights,
    step_sizes,
    control_step,
    participation,
    active_sets,
    batches,
    quantise,
):
    """Algorithm 1: FedEM with partial participation. Yields a Round after each round."""
    n_clients = len(controls)
    S, V_clients = start, list(controls)
    V = weighted_sum(client_weights, V_clients)  # line 1
    for k in range(len(active_sets)):  # line 2
        active = active_sets[k]  # line 3
        theta = m_step(S)
        V_next = list(V_clients)  # lines 10 to 12
        quantised = {}
        for i in range(n_clients):  # line 4
            if i not in active:
                continue
            S_client = client_statistics(i, theta, batches[k][i])  # line 6
            delta = S_client - V_clients[i] - S  # line 7
            quantised[i] = quantise(k, i, delta, theta)  # line 9
            V_next[i] = V_clients[i] + control_step * quantised[i]  # line 8
        message_sum = 0.0 * S
        for i in quantised:
            message_sum = message_sum + client_weights[i] * quantised[i]
        H = V + message_sum / participation  # line 14
        S = S + step_sizes[k] * H  # line 15
        V = V + control_step * message_sum  # line 16
        V_clients = V_next
        yield Round(S, list(V_clients), V, H)  # line 17


def vr_fedem_full_participation(
    client_statistics,
    m_step,
    start,
    controls,
    client_weights,
    step_sizes,
    control_step,
    batches,
    n_inner,
    n_outer,
    quantise,
):
    """Algorithm 2 as printed: every client takes part in every round.

    Rounds are numbered through: round (t - 1) n_inner + k is round k of outer loop t.
    """
    clients = range(len(controls))
    S, S_previous = start, start  # line 1
    V_clients = list(controls)
    V = weighted_sum(client_weights, V_clients)
    S_clients = [client_statistics(i, m_step(S), None) for i in clients]  # lines 2 and 3
    for t in range(1, n_outer + 1):  # line 4
        for k in range(n_inner):  # line 5
            index = (t - 1) * n_inner + k
            quantised = []
            for i in clients:  # line 6
                batch = batches[index][i]  # line 7
                S_clients[i] = (
                    S_clients[i]
                    + client_statistics(i, m_step(S), batch)
                    - client_statistics(i, m_step(S_previous), batch)
                )  # line 8
                delta = S_clients[i] - S - V_clients[i]  # line 9
                quantised.append(quantise(index, i, delta, m_step(S)))  # line 11
                V_clients[i] = V_clients[i] + control_step * quantised[i]  # line 10
            message_sum = weighted_sum(client_weights, quantised)
            H = V + message_sum  # line 13
            S_previous, S = S, S + step_sizes[index] * H  # line 14
            V = V + control_step * message_sum  # line 15
            yield Round(S, list(V_clients), V, H)  # line 16
        S_previous = S  # line 17; V and the V_i are carried over, lines 18 and 21
        S_clients = [client_statistics(i, m_step(S), None) for i in clients]  # lines 19 and 20


def vr_fedem(
    client_statistics,
    m_step,
    start,
    controls,
    client_weights,
    step_sizes,
    control_step,
    participation,
    active_sets,
    batches,
    n_inner,
    quantise,
):
    """Algorithm 2 with partial participation. Yields a Round after each round.

    A client that is away computes nothing: it keeps its S_i and the iterate Ŝ with which it last
    took part, and takes its next difference against that iterate. The mean over all rows, lines 3
    and 20, waits for the first round of the outer loop in which the client is active. It is taken
    at the iterate of that round, so that this round has no difference to add; with p = 1, where
    that round is k = 0, the difference of line 8 is zero because Ŝ_{t,0} = Ŝ_{t,-1}.

    Rounds are numbered through; the last outer loop may be short.
    """
    n_clients = len(controls)
    S, V_clients = start, list(controls)  # line 1
    V = weighted_sum(client_weights, V_clients)
    S_clients = [None] * n_clients
    S_last = [None] * n_clients
    for index in range(len(active_sets)):  # lines 4 and 5
        if index % n_inner == 0:
            refreshed = [False] * n_clients
        quantised = {}
        for i in range(n_clients):  # line 6
            if i not in active_sets[index]:
                continue
            if not refreshed[i]:
                S_clients[i] = client_statistics(i, m_step(S), None)  # lines 3 and 20
                refreshed[i] = True
            else:
                batch = batches[index][i]  # line 7
                S_clients[i] = (
                    S_clients[i]
                    + client_statistics(i, m_step(S), batch)
                    - client_statistics(i, m_step(S_last[i]), batch)
                )  # line 8
            S_last[i] = S
            delta = S_clients[i] - S - V_clients[i]  # line 9
            quantised[i] = quantise(index, i, delta, m_step(S))  # line 11
            V_clients[i] = V_clients[i] + control_step * quantised[i]  # line 10
        message_sum = 0.0 * S
        for i in quantised:
            message_sum = message_sum + client_weights[i] * quantised[i]
        H = V + message_sum / participation  # line 13
        S = S + step_sizes[index] * H  # line 14
        V = V + control_step * message_sum  # line 15
        yield Round(S, list(V_clients), V, H)  # line 16
