"""Functions that split the rows of a table over clients."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.random import RandomState
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.utils import column_or_1d

from .._compat import rows_of
from .._data.labels import missing_labels, sort_keys
from .._data.tables import unmasked
from .._error_messages import error_context
from .._parameters import check_choice, check_counts, check_positive, takes_python_numbers
from .._random import random_numbers
from .._typing import IntArray, Seed

_SCHEMES = ("iid", "label", "dirichlet", "size")


@takes_python_numbers
def client_labels(
    X: ArrayLike,
    n_clients: int = 10,
    *,
    scheme: Literal["iid", "label", "dirichlet", "size"] = "iid",
    y: ArrayLike | None = None,
    shards_per_client: int = 2,
    alpha: float = 0.5,
    min_rows: int = 1,
    random_state: Seed = None,
) -> IntArray:
    """Assign each row to a client, for ``fit(X, clients=labels)``.

    Parameters
    ----------
    X : array-like of shape (n_samples,), or table or sparse matrix (n_samples, n_features)
        The rows to split. Only their number is used.
    n_clients : int, default=10
        Number of clients.
    scheme : {"iid", "label", "dirichlet", "size"}, default="iid"
        - "iid": at random. Clients are alike, and their sizes differ by at most one row.
        - "label": the rows are sorted by `y` (at random within a label) and cut into ``n_clients *
          shards_per_client`` consecutive shards, which are assigned to the clients at random [1]_.
          Each client has few labels; sizes differ by at most one row.
        - "dirichlet": the rows of each label are split over the clients in proportions drawn from a
          symmetric Dirichlet distribution, independently for each label [2]_. Clients differ in
          labels and size. ([3]_ instead draws the label distribution of each client.)
        - "size": at random, in proportions drawn from a symmetric Dirichlet distribution. Clients
          differ only in size.
    y : array-like of shape (n_samples,), default=None
        Labels of the rows, of any type that can be sorted; ordered categories of pandas keep their
        order. Required by "label" and "dirichlet", ignored otherwise. With "label", it may also be
        a continuous quantity.
    shards_per_client : int, default=2
        Number of shards per client with "label". With 1, a client has a single label, unless its
        shard contains the boundary between two labels.
    alpha : float, default=0.5
        Concentration of the Dirichlet distributions of "dirichlet" and "size", ``alpha > 0``. Near
        0, each label ("dirichlet") or nearly all rows ("size") belong to one client; for large
        values, clients become alike.
    min_rows : int, default=1
        Minimum number of rows of a client. "dirichlet" and "size" enforce it by moving random rows,
        one by one, from the currently largest client to those with too few.
    random_state : int, RandomState instance or None, default=None
        Seed. Pass an int for reproducible labels.

    Returns
    -------
    ndarray of shape (n_samples,), int
        Client of each row, 0 to ``n_clients - 1``; every client occurs at least `min_rows` times.

    Raises
    ------
    TypeError, ValueError
        If there are too few rows, if `y` is missing, has missing values or another length than `X`,
        or if a parameter is out of range.

    See Also
    --------
    split_clients : Returns the rows as a list of clients.

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
    ...     X, n_clients=3, scheme="label", y=y, shards_per_client=1, random_state=0
    ... )
    >>> bool(np.all(labels[:3] == labels[3:]))  # one label, one client
    True
    """
    check_choice("scheme", scheme, _SCHEMES)
    check_counts(n_clients=n_clients, min_rows=min_rows)
    n_samples = _check_rows(X).shape[0]
    if n_samples < n_clients * min_rows:
        raise ValueError(
            f"Expected at least n_clients * min_rows = {n_clients} * {min_rows} = "
            f"{n_clients * min_rows} rows, got {n_samples}. Lower n_clients or min_rows."
        )
    rng = random_numbers(random_state)
    if scheme == "iid":
        sizes = equal_sizes(n_samples, n_clients)
        return rng.permutation(np.repeat(np.arange(n_clients), sizes))

    if scheme == "size":
        codes = np.zeros(n_samples, dtype=int)
    else:
        codes = _label_codes(y, n_samples, scheme)
    if scheme == "label":
        check_counts(shards_per_client=shards_per_client)
        if n_samples < n_clients * shards_per_client:
            raise ValueError(
                f"Expected at least n_clients * shards_per_client = {n_clients} * "
                f"{shards_per_client} = {n_clients * shards_per_client} rows, got {n_samples}. "
                "Lower n_clients or shards_per_client."
            )
        shuffled = rng.permutation(n_samples)
        rows = shuffled[np.argsort(codes[shuffled], kind="stable")]
        return _deal_shards(rows, n_clients, shards_per_client, rng)

    check_positive(alpha=alpha)
    labels = _dirichlet_labels(codes, n_clients, alpha, rng)
    return fill_up(labels, n_clients, min_rows, rng)


def split_clients(
    X: ArrayLike,
    n_clients: int = 10,
    *,
    scheme: Literal["iid", "label", "dirichlet", "size"] = "iid",
    y: ArrayLike | None = None,
    shards_per_client: int = 2,
    alpha: float = 0.5,
    min_rows: int = 1,
    random_state: Seed = None,
) -> list[Any]:
    """Split rows over clients, for ``fit(clients)``.

    Parameters
    ----------
    X : array-like of shape (n_samples,), or table or sparse matrix (n_samples, n_features)
        The rows to split.
    n_clients, scheme, y, shards_per_client, alpha, min_rows, random_state
        As in :func:`client_labels`.

    Returns
    -------
    list of ndarray, DataFrame or sparse matrix, each of shape (n_samples_i, ...)
        The rows of each client, in the order of `X`. DataFrames keep their columns and index;
        sparse matrices become CSR.

    Raises
    ------
    TypeError, ValueError
        As in :func:`client_labels`.

    See Also
    --------
    client_labels : Returns the client of each row, for splitting other arrays in the same way.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.datasets import split_clients
    >>> X = np.arange(10).reshape(5, 2)
    >>> clients = split_clients(X, n_clients=2, random_state=0)
    >>> [rows.shape for rows in clients]
    [(3, 2), (2, 2)]
    """
    X = _check_rows(X)
    labels = client_labels(
        X,
        n_clients,
        scheme=scheme,
        y=y,
        shards_per_client=shards_per_client,
        alpha=alpha,
        min_rows=min_rows,
        random_state=random_state,
    )
    return split_by(X, labels, n_clients)


def _check_rows(X: Any) -> Any:
    with error_context("X is not one array or DataFrame"):
        X = X if hasattr(X, "shape") else np.asarray(X)
    if len(X.shape) not in (1, 2):
        raise ValueError(
            "Expected X to be one array or DataFrame of shape (n_samples, n_features), got "
            f"{len(X.shape)} dimensions. Give the rows of all clients as one array."
        )
    return X.tocsr() if issparse(X) else X


def _label_codes(y: Any, n_samples: int, scheme: str) -> IntArray:
    if y is None:
        raise ValueError(
            f"Expected a label for every row with scheme={scheme!r}, got y=None. Give y."
        )
    if getattr(getattr(y, "dtype", None), "ordered", False):
        codes = np.asarray(getattr(y, "cat", y).codes)
        y = np.where(codes < 0, np.nan, codes)
    y = unmasked(y)
    # As objects, a list of labels keeps its types: NumPy would make strings of ["a", nan].
    y = column_or_1d(y if hasattr(y, "dtype") else np.asarray(y, dtype=object))
    if len(y) != n_samples:
        raise ValueError(f"Expected y to have one label per row of X, {n_samples}, got {len(y)}.")
    missing = missing_labels(y)
    if len(missing):
        raise ValueError(
            f"Expected a label for every row, got a missing one in row {missing[0]} of y: drop or "
            "fill these rows."
        )
    with error_context("Labels in y cannot be sorted"):
        return np.unique(sort_keys(y), return_inverse=True)[1]


def equal_sizes(total: int, n_parts: int) -> IntArray:
    """Sizes of parts that differ by at most one."""
    sizes = np.full(n_parts, total // n_parts)
    sizes[: total % n_parts] += 1
    return sizes


def _deal_shards(
    rows: IntArray, n_clients: int, shards_per_client: int, rng: RandomState
) -> IntArray:
    """Cut `rows` into consecutive shards, of equal sums by client, and assign them at random."""
    shard_sizes = np.array(
        [equal_sizes(size, shards_per_client) for size in equal_sizes(len(rows), n_clients)]
    )
    shards = rng.permutation(shard_sizes.size)
    labels = np.empty(len(rows), dtype=int)
    labels[rows] = np.repeat(shards // shards_per_client, shard_sizes.ravel()[shards])
    return labels


def _dirichlet_labels(codes: IntArray, n_clients: int, alpha: float, rng: RandomState) -> IntArray:
    labels = np.empty(len(codes), dtype=int)
    for rows in split_by(np.arange(len(codes)), codes, codes.max() + 1):
        # A Dirichlet draw is a vector of gamma draws divided by their sum. Logarithms, because with
        # a small alpha all gamma draws underflow: Gamma(a) is distributed as Gamma(a + 1) *
        # U^(1/a). Below 1e-300 even logarithms overflow, and one client has all rows in any case.
        log_shares = np.log(rng.standard_gamma(alpha + 1, n_clients))
        log_shares += np.log(1 - rng.random_sample(n_clients)) / max(alpha, 1e-300)
        shares = np.exp(log_shares - log_shares.max())
        # Random rounding: otherwise, the same clients would be rounded up for every label.
        ends = np.cumsum(shares) / shares.sum() * len(rows) + rng.random_sample()
        ends = np.append(ends[:-1].astype(int), len(rows))
        holders = np.repeat(np.arange(n_clients), np.diff(ends, prepend=0))
        labels[rows] = rng.permutation(holders)
    return labels


def fill_up(labels: IntArray, n_clients: int, min_rows: int, rng: RandomState) -> IntArray:
    """Move rows, one by one, from the largest client to the smallest until all have enough."""
    sizes = np.bincount(labels, minlength=n_clients)
    if sizes.min() >= min_rows:
        return labels
    shuffled = rng.permutation(len(labels))
    rows = [list(part) for part in split_by(shuffled, labels[shuffled], n_clients)]
    while sizes.min() < min_rows:
        largest, smallest = sizes.argmax(), sizes.argmin()
        labels[rows[largest].pop()] = smallest
        sizes[largest] -= 1
        sizes[smallest] += 1
    return labels


def split_by(X: Any, labels: IntArray, n_clients: int) -> list[Any]:
    """Rows of each label, in order."""
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=n_clients))
    # Plain indexing: scikit-learn's checks take longer than copying a client's few rows.
    taken = X.__getitem__ if type(X) is np.ndarray or issparse(X) else partial(rows_of, X)
    return [taken(rows) for rows in np.split(order, ends[:-1])]
