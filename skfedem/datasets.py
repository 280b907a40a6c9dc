"""Simulated federations: rows spread over clients, and mixtures with known parameters.

Two questions decide how hard a federation is: what the rows look like, and who holds which. The
splitters answer the second for rows that you have, the ``make_*`` simulators answer both. They are
for experiments: in a deployment the rows are where they are.

The caller's arrays are never changed; every client gets a copy of its rows.
"""

from numbers import Integral, Real

import numpy as np
from sklearn.utils import Bunch, _safe_indexing, check_random_state, check_scalar, column_or_1d

__all__ = ["client_labels", "make_fedem_mixture", "make_gaussian_mixture", "split_clients"]

_SPLITS = ("iid", "by_label", "dirichlet")
_COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
_N_MEANS_DRAWN = 20


def client_labels(
    X,
    n_clients=10,
    *,
    how="iid",
    y=None,
    shards_per_client=2,
    concentration=0.5,
    min_rows=1,
    random_state=None,
):
    """Client that holds each row, for ``fit(X, clients=labels)``.

    Parameters
    ----------
    X : array-like or DataFrame of shape (n_samples, ...)
        The rows to spread. Only their number is used.
    n_clients : int, default=10
        Number of clients.
    how : {"iid", "by_label", "dirichlet"}, default="iid"
        - "iid": at random. The clients are alike, and their sizes differ by at most one row.
        - "by_label": the rows are sorted by `y` (at random within a label) and cut into
          ``n_clients * shards_per_client`` consecutive shards, which are dealt to the clients at
          random [1]_. Each client sees few labels; sizes differ by at most one row.
        - "dirichlet": the rows of each label are shared out to the clients by proportions drawn
          from a symmetric Dirichlet distribution, independently for each label [2]_. Both the
          mix of labels and the sizes of the clients vary. ([3]_ draws the mix of each client
          instead, and keeps the sizes equal.)
    y : array-like of shape (n_samples,), default=None
        The rows' labels, of any type that sorts. Required unless ``how="iid"``, which ignores it.
        With "by_label" it may also be a continuous quantity.
    shards_per_client : int, default=2
        Used by "by_label". With 1, a client holds a single label, but for the clients whose shard
        straddles the border of two.
    concentration : float, default=0.5
        Used by "dirichlet", ``concentration > 0``: near 0 a label belongs to one client, towards
        infinity the clients become alike.
    min_rows : int, default=1
        Fewest rows of a client. Only "dirichlet" needs to act on it: rows drawn at random from
        the client that is then the largest move to those that are short.
    random_state : int, RandomState instance or None, default=None
        Seed. An int gives the same labels in every call.

    Returns
    -------
    ndarray of shape (n_samples,), int
        Labels 0 to ``n_clients - 1``. Each of them occurs at least `min_rows` times.

    Raises
    ------
    TypeError, ValueError
        If there are too few rows, if `y` is missing, has another length than `X` or has missing
        values, or if a parameter is out of its range.

    See Also
    --------
    split_clients : The rows themselves, as a list of clients.

    References
    ----------
    .. [1] H. B. McMahan et al., "Communication-efficient learning of deep networks from
       decentralized data", AISTATS 2017.
    .. [2] M. Yurochkin et al., "Bayesian nonparametric federated learning of neural networks",
       ICML 2019.
    .. [3] T.-M. H. Hsu, H. Qi and M. Brown, "Measuring the effects of non-identical data
       distribution for federated visual classification", arXiv:1909.06335, 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.datasets import client_labels
    >>> X = np.zeros((6, 2))
    >>> y = ["a", "b", "c", "a", "b", "c"]
    >>> labels = client_labels(
    ...     X, n_clients=3, how="by_label", y=y, shards_per_client=1, random_state=0
    ... )
    >>> bool(np.all(labels[:3] == labels[3:]))  # one label, one client
    True
    """
    _check_choice(how, "how", _SPLITS)
    check_scalar(n_clients, "n_clients", Integral, min_val=1)
    check_scalar(min_rows, "min_rows", Integral, min_val=1)
    n_samples = np.shape(_check_rows(X))[0]
    if n_samples < n_clients * min_rows:
        raise ValueError(
            f"Expected at least n_clients * min_rows = {n_clients} * {min_rows} = "
            f"{n_clients * min_rows} rows, got {n_samples}: lower n_clients or min_rows."
        )
    random_state = check_random_state(random_state)
    if how == "iid":
        labels = np.repeat(np.arange(n_clients), _equal_sizes(n_samples, n_clients))
        return random_state.permutation(labels)

    codes = _label_codes(y, n_samples, how)
    if how == "by_label":
        check_scalar(shards_per_client, "shards_per_client", Integral, min_val=1)
        if n_samples < n_clients * shards_per_client:
            raise ValueError(
                f"Expected at least n_clients * shards_per_client = {n_clients} * "
                f"{shards_per_client} = {n_clients * shards_per_client} rows, got {n_samples}: "
                "lower n_clients or shards_per_client."
            )
        shuffled = random_state.permutation(n_samples)
        rows = shuffled[np.argsort(codes[shuffled], kind="stable")]
        return _deal_shards(rows, n_clients, shards_per_client, random_state)

    _check_real(concentration, "concentration", above=0)
    labels = _dirichlet_labels(codes, n_clients, concentration, random_state)
    return _fill_up(labels, n_clients, min_rows, random_state)


def split_clients(
    X,
    n_clients=10,
    *,
    how="iid",
    y=None,
    shards_per_client=2,
    concentration=0.5,
    min_rows=1,
    random_state=None,
):
    """Spread rows over clients, for ``fit(clients)``.

    Parameters
    ----------
    X : array-like or DataFrame of shape (n_samples, ...)
        The rows to spread.
    n_clients, how, y, shards_per_client, concentration, min_rows, random_state
        As in :func:`client_labels`.

    Returns
    -------
    list of ndarray or DataFrame of shape (n_samples_i, ...)
        The rows of client 0, 1, ..., ``n_clients - 1``. Every row of `X` is in one of them, in the
        order that it has in `X`; DataFrames keep their columns and index.

    Raises
    ------
    TypeError, ValueError
        As :func:`client_labels`.

    See Also
    --------
    client_labels : The client of each row, which splits other arrays the same way.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.datasets import split_clients
    >>> X = np.arange(10).reshape(5, 2)
    >>> clients = split_clients(X, n_clients=2, random_state=0)
    >>> [rows.shape for rows in clients]
    [(3, 2), (2, 2)]
    >>> int(sum(rows.sum() for rows in clients)) == int(X.sum())
    True
    """
    X = _check_rows(X)
    labels = client_labels(
        X,
        n_clients,
        how=how,
        y=y,
        shards_per_client=shards_per_client,
        concentration=concentration,
        min_rows=min_rows,
        random_state=random_state,
    )
    return _split_by(X, labels, n_clients)


def make_gaussian_mixture(
    n_clients=10,
    n_samples=100,
    n_features=2,
    n_components=3,
    *,
    covariance_type="tied",
    separation=3.0,
    weights=None,
    heterogeneity="iid",
    random_state=None,
):
    """Draw a Gaussian mixture at random, and rows of it that clients hold.

    ``n_clients * n_samples`` rows are drawn from the mixture and dealt to the clients. With an int
    as `random_state`, `heterogeneity` changes only who holds which row: the pooled rows, and so
    the fit to be found, stay the same.

    Parameters
    ----------
    n_clients : int, default=10
        Number of clients.
    n_samples : int, default=100
        Mean number of rows of a client; every client's number with ``heterogeneity="iid"``.
    n_features : int, default=2
        Number of features.
    n_components : int, default=3
        Number of components.
    covariance_type : {"full", "tied", "diag", "spherical"}, default="tied"
        Shape of the covariances, as in :class:`sklearn.mixture.GaussianMixture`. The variances
        along the principal axes are drawn uniformly from [0.5, 1.5].
    separation : float, default=3.0
        Distance between the two closest means, ``separation >= 0``. Standard deviations are
        around 1: at 1 components overlap heavily, at 5 hardly.
    weights : array-like of shape (n_components,), default=None
        Probabilities of the components; None: all equal.
    heterogeneity : {"iid", "one_component"} or float, default="iid"
        - "iid": rows are dealt at random, the clients are alike;
        - "one_component": each client holds rows of a single component. A component has clients
          in proportion to its rows, at least one; sizes vary;
        - a float: the concentration of :func:`client_labels`'s Dirichlet split by component, near
          0 for very unlike clients; sizes vary.
    random_state : int, RandomState instance or None, default=None
        Seed. An int gives the same result in every call.

    Returns
    -------
    Bunch
        - ``clients`` : list of ndarray of shape (n_samples_i, n_features), the clients' rows;
        - ``labels`` : list of ndarray of shape (n_samples_i,), the rows' components;
        - ``weights`` : ndarray of shape (n_components,), the true weights;
        - ``means`` : ndarray of shape (n_components, n_features), the true means;
        - ``covariances`` : ndarray, the true covariances: (n_components, n_features, n_features)
          for "full", (n_features, n_features) for "tied", (n_components, n_features) for "diag",
          (n_components,) for "spherical".

    Raises
    ------
    TypeError, ValueError
        If a parameter is out of its range, if `weights` are no probabilities, or if there are
        fewer clients than components with ``heterogeneity="one_component"``.

    See Also
    --------
    make_fedem_mixture : The paper's synthetic experiment, with a fixed mixture.

    Examples
    --------
    >>> from skfedem.datasets import make_gaussian_mixture
    >>> data = make_gaussian_mixture(
    ...     n_clients=4, n_samples=50, heterogeneity="one_component", random_state=0
    ... )
    >>> len(data.clients), data.means.shape, data.covariances.shape
    (4, (3, 2), (2, 2))
    >>> [len(set(components)) for components in data.labels]
    [1, 1, 1, 1]
    """
    check_scalar(n_clients, "n_clients", Integral, min_val=1)
    check_scalar(n_samples, "n_samples", Integral, min_val=1)
    check_scalar(n_features, "n_features", Integral, min_val=1)
    check_scalar(n_components, "n_components", Integral, min_val=1)
    _check_real(separation, "separation", at_least=0)
    _check_choice(covariance_type, "covariance_type", _COVARIANCE_TYPES)
    weights = _check_weights(weights, n_components)
    random_state = check_random_state(random_state)
    means = _draw_means(n_components, n_features, separation, random_state)
    covariances = _draw_covariances(covariance_type, n_components, n_features, random_state)
    return _simulate(
        n_clients,
        n_samples,
        weights,
        means,
        covariances,
        covariance_type,
        heterogeneity,
        random_state,
    )


def make_fedem_mixture(n_clients=100, n_samples=100, *, heterogeneity="iid", random_state=None):
    """Synthetic experiment of the FedEM paper: two components, a known common covariance.

    10,000 rows in two dimensions, held by 100 clients of 100 rows each; only the weights and the
    means are to be estimated. The paper publishes the sizes, not the parameters: those used here
    are weights 0.4 and 0.6, means (-1.5, -1) and (1.5, 1) and the covariance
    ((1, 0.5), (0.5, 1)), so that the means are about 3 standard deviations apart.

    Parameters
    ----------
    n_clients : int, default=100
        Number of clients.
    n_samples : int, default=100
        Mean number of rows of a client; every client's number with ``heterogeneity="iid"``.
    heterogeneity : {"iid", "one_component"} or float, default="iid"
        How unlike the clients are, as in :func:`make_gaussian_mixture`.
    random_state : int, RandomState instance or None, default=None
        Seed of the rows. The parameters do not depend on it.

    Returns
    -------
    Bunch
        - ``clients`` : list of ndarray of shape (n_samples_i, 2), the clients' rows;
        - ``labels`` : list of ndarray of shape (n_samples_i,), the rows' components;
        - ``weights`` : ndarray of shape (2,), the true weights;
        - ``means`` : ndarray of shape (2, 2), the true means;
        - ``covariances`` : ndarray of shape (2, 2), the known common covariance.

    Raises
    ------
    TypeError, ValueError
        If a parameter is out of its range.

    References
    ----------
    .. [1] A. Dieuleveut, G. Fort, E. Moulines and G. Robin, "Federated Expectation Maximization
       with heterogeneity mitigation and variance reduction", Advances in Neural Information
       Processing Systems 34, 2021, Section 4, "Synthetic data".

    Examples
    --------
    >>> from skfedem.datasets import make_fedem_mixture
    >>> data = make_fedem_mixture(random_state=0)
    >>> len(data.clients), data.clients[0].shape
    (100, (100, 2))
    >>> data.covariances
    array([[1. , 0.5],
           [0.5, 1. ]])
    """
    check_scalar(n_clients, "n_clients", Integral, min_val=1)
    check_scalar(n_samples, "n_samples", Integral, min_val=1)
    weights = np.array([0.4, 0.6])
    means = np.array([[-1.5, -1.0], [1.5, 1.0]])
    covariance = np.array([[1.0, 0.5], [0.5, 1.0]])
    return _simulate(
        n_clients,
        n_samples,
        weights,
        means,
        covariance,
        "tied",
        heterogeneity,
        check_random_state(random_state),
    )


def _check_choice(value, name, choices):
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")


def _check_real(value, name, *, above=None, at_least=None):
    """Check a finite number: check_scalar's comparisons let NaN and infinity pass."""
    boundaries = "neither" if at_least is None else "left"
    check_scalar(
        value,
        name,
        Real,
        min_val=above if at_least is None else at_least,
        max_val=np.inf,
        include_boundaries=boundaries,
    )
    if np.isnan(value):
        raise ValueError(f"{name} must be a finite number; got {value!r}.")


def _check_rows(X):
    try:
        X = X if hasattr(X, "shape") else np.asarray(X)
    except ValueError as error:
        raise ValueError(
            "Expected X to be one array or DataFrame, got a sequence of unequal parts: if these "
            "are the clients already, there is nothing to split."
        ) from error
    if len(X.shape) not in (1, 2):
        raise ValueError(
            "Expected X to be one array or DataFrame of shape (n_samples, n_features), got "
            f"{len(X.shape)} dimensions: pass the rows of all clients as one array."
        )
    return X


def _label_codes(y, n_samples, how):
    if y is None:
        raise ValueError(f"how={how!r} needs the label of each row, got y=None: pass y.")
    y = column_or_1d(y)
    if len(y) != n_samples:
        raise ValueError(f"Expected y to have one label per row of X, {n_samples}, got {len(y)}.")
    try:
        labels, codes = np.unique(y, return_inverse=True)
    except TypeError as error:
        raise TypeError(
            "Expected y to hold labels of one type, without missing values, got values that "
            f"cannot be sorted ({error}): convert y to strings or to numbers."
        ) from error
    if np.any(labels != labels):
        raise ValueError("Expected a label for every row, got NaN in y: drop or fill these rows.")
    return codes


def _check_weights(weights, n_components):
    if weights is None:
        return np.full(n_components, 1 / n_components)
    weights = np.array(weights, dtype=float)
    if weights.shape != (n_components,):
        raise ValueError(
            f"Expected weights of shape ({n_components},), one per component, got shape "
            f"{weights.shape}: change weights or n_components."
        )
    if not (np.all(weights >= 0) and np.isclose(weights.sum(), 1)):
        raise ValueError(
            f"Expected weights >= 0 with sum 1, got {weights} with sum {weights.sum()}: divide "
            "them by their sum."
        )
    return weights / weights.sum()


def _equal_sizes(total, n_parts):
    sizes = np.full(n_parts, total // n_parts)
    sizes[: total % n_parts] += 1
    return sizes


def _deal_shards(rows, n_clients, shards_per_client, random_state):
    """Cut `rows` where they stand into shards, and deal those to the clients at random.

    The clients' sizes are made equal first, then those of a client's shards: cutting equal shards
    first would leave the sizes of clients up to `shards_per_client` apart.
    """
    shard_sizes = np.array(
        [_equal_sizes(size, shards_per_client) for size in _equal_sizes(len(rows), n_clients)]
    )
    shards = random_state.permutation(shard_sizes.size)
    labels = np.empty(len(rows), dtype=int)
    labels[rows] = np.repeat(shards // shards_per_client, shard_sizes.ravel()[shards])
    return labels


def _dirichlet_labels(codes, n_clients, concentration, random_state):
    labels = np.empty(len(codes), dtype=int)
    for rows in _split_by(np.arange(len(codes)), codes, codes.max() + 1):
        # A Dirichlet draw is gamma draws over their sum. Logarithms of gamma draws, because the
        # draws themselves all underflow to 0 at a small concentration; Gamma(a) has the law of
        # Gamma(a + 1) * U^(1/a).
        log_shares = np.log(random_state.standard_gamma(concentration + 1, n_clients))
        log_shares += np.log(1 - random_state.random_sample(n_clients)) / concentration
        shares = np.exp(log_shares - log_shares.max())
        ends = np.rint(np.cumsum(shares) / shares.sum() * len(rows)).astype(int)
        holders = np.repeat(np.arange(n_clients), np.diff(ends, prepend=0))
        labels[rows] = random_state.permutation(holders)
    return labels


def _fill_up(labels, n_clients, min_rows, random_state):
    """Move rows, one by one, from the largest client to the smallest until none is short."""
    sizes = np.bincount(labels, minlength=n_clients)
    if sizes.min() >= min_rows:
        return labels
    shuffled = random_state.permutation(len(labels))
    rows = [list(part) for part in _split_by(shuffled, labels[shuffled], n_clients)]
    while sizes.min() < min_rows:
        largest, smallest = sizes.argmax(), sizes.argmin()
        row = rows[largest].pop()
        rows[smallest].append(row)
        labels[row] = smallest
        sizes[largest] -= 1
        sizes[smallest] += 1
    return labels


def _one_component_labels(components, n_components, n_clients, random_state):
    """Give each component whole clients: the next client goes where clients are largest."""
    n_rows = np.bincount(components, minlength=n_components)
    n_holders = (n_rows > 0).astype(int)
    for _ in range(n_clients - n_holders.sum()):
        n_holders[np.argmax(n_rows / np.maximum(n_holders, 1))] += 1
    labels = np.empty(len(components), dtype=int)
    first = 0
    for component in np.flatnonzero(n_rows):
        holders = np.arange(first, first + n_holders[component])
        holders_of_rows = np.repeat(holders, _equal_sizes(n_rows[component], len(holders)))
        labels[components == component] = random_state.permutation(holders_of_rows)
        first += len(holders)
    return labels


def _split_by(X, labels, n_clients):
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=n_clients))
    return [_safe_indexing(X, rows) for rows in np.split(order, ends[:-1])]


def _draw_means(n_components, n_features, separation, random_state):
    if n_components == 1:
        return np.zeros((1, n_features))
    # The best of a few draws: scaling a draw in which two means nearly coincide would throw the
    # others far away.
    best, best_distance = None, -1.0
    for _ in range(_N_MEANS_DRAWN):
        means = random_state.standard_normal((n_components, n_features))
        distances = np.linalg.norm(means[:, None] - means, axis=2)
        closest = distances[np.triu_indices(n_components, 1)].min()
        if closest > best_distance:
            best, best_distance = means, closest
    return best * (separation / best_distance)


def _draw_covariances(covariance_type, n_components, n_features, random_state):
    if covariance_type == "spherical":
        return random_state.uniform(0.5, 1.5, n_components)
    if covariance_type == "diag":
        return random_state.uniform(0.5, 1.5, (n_components, n_features))
    n_covariances = 1 if covariance_type == "tied" else n_components
    covariances = np.empty((n_covariances, n_features, n_features))
    for covariance in covariances:
        axes, _ = np.linalg.qr(random_state.standard_normal((n_features, n_features)))
        scaled = axes * np.sqrt(random_state.uniform(0.5, 1.5, n_features))
        covariance[:] = scaled @ scaled.T
    return covariances[0] if covariance_type == "tied" else covariances


def _component_factors(covariances, covariance_type, n_components, n_features):
    """Matrix A of each component with A Aᵀ = its covariance."""
    if covariance_type == "full":
        return np.linalg.cholesky(covariances)
    if covariance_type == "tied":
        return np.broadcast_to(
            np.linalg.cholesky(covariances), (n_components, n_features, n_features)
        )
    deviations = np.sqrt(covariances)
    if covariance_type == "spherical":
        deviations = deviations[:, None]
    return deviations[..., None] * np.eye(n_features)


def _simulate(
    n_clients, n_samples, weights, means, covariances, covariance_type, heterogeneity, random_state
):
    n_components, n_features = means.shape
    if isinstance(heterogeneity, str):
        _check_choice(heterogeneity, "heterogeneity", ("iid", "one_component"))
    else:
        _check_real(heterogeneity, "heterogeneity", above=0)
    if heterogeneity == "one_component" and n_clients < n_components:
        raise ValueError(
            f"heterogeneity='one_component' needs a client for each of the {n_components} "
            f"components, got n_clients={n_clients}: raise n_clients or lower n_components."
        )
    n_rows = n_clients * n_samples
    components = random_state.choice(n_components, size=n_rows, p=weights)
    factors = _component_factors(covariances, covariance_type, n_components, n_features)
    rows = random_state.standard_normal((n_rows, n_features))
    for component in range(n_components):
        drawn = components == component
        rows[drawn] = means[component] + rows[drawn] @ factors[component].T

    # Last, so that the split cannot change the rows.
    if heterogeneity == "one_component":
        labels = _one_component_labels(components, n_components, n_clients, random_state)
    elif heterogeneity == "iid":
        labels = client_labels(rows, n_clients, random_state=random_state)
    else:
        labels = client_labels(
            rows,
            n_clients,
            how="dirichlet",
            y=components,
            concentration=heterogeneity,
            random_state=random_state,
        )
    return Bunch(
        clients=_split_by(rows, labels, n_clients),
        labels=_split_by(components, labels, n_clients),
        weights=weights,
        means=means,
        covariances=covariances,
    )
