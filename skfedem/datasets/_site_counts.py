"""Simulated counts by site and month, reported by observers of unequal effort."""

from __future__ import annotations

from numbers import Integral
from typing import Any, Literal, get_args

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.utils import Bunch

from .._parameters import (
    check_choice,
    check_counts,
    check_not_negative,
    check_number,
    check_positive,
    takes_python_numbers,
)
from .._random import random_numbers
from .._typing import FamilyName, FloatArray, IntArray, Seed

_COUNTS = ("poisson", "negative_binomial")
_GROUPINGS = ("random", "region")
_MONTHS_PER_YEAR = 12
_PEAK_MONTH = 5  # June
_OBSERVATIONS_PER_OBSERVER = 5
# Observations drawn at once, so that less than 100 MB are needed in addition to the result.
_BLOCK = 1 << 18
# Counts are stored as float64, which holds integers up to here.
_LARGEST_LOG_MEAN = 53 * np.log(2)


@takes_python_numbers
def make_site_counts(
    n_sites: int = 300,
    n_months: int = 60,
    n_clients: int = 10,
    *,
    observed: float = 0.1,
    rank: int = 2,
    family: FamilyName = "poisson",
    negative_binomial_size: float = 1.0,
    offset_deviation: float = 0.0,
    client_deviation: float = 0.0,
    intercept: float = 1.0,
    site_deviation: float = 1.0,
    seasonality: float = 0.5,
    trend: float = -0.05,
    interaction: float = 0.3,
    n_observers: int | None = None,
    effort_tail: float = 1.2,
    effort_growth: float = 0.1,
    home_range: float = 10.0,
    grouping: Literal["random", "region"] = "random",
    random_state: Seed = None,
) -> Bunch:
    """Simulate counts by site and month, a few of which are reported by groups of observers.

    This is the setting of the eBird study in [1]_: apart from main effects, the matrix of sites by
    months has low rank, and most of its cells are never observed. An observation is a visit of one
    observer to one site in one month; a cell may be visited several times.

    The natural parameter of site j in month l is ::

        theta[j, l] = intercept + row_effects[j] + column_effects[l]
                      + row_factors[j] @ column_factors[l]

    and an observation of this cell is drawn from the distribution with this parameter. The matrix
    is never formed: a million sites by 240 months with ten million observations, the largest size
    intended, need about 0.6 GB.

    Parameters
    ----------
    n_sites : int, default=300
        Number of sites J. Sites lie along the coast of an island, so that neighbouring numbers (the
        last and the first, too) are neighbouring sites.
    n_months : int, default=60
        Number of months L; month 0 is a January.
    n_clients : int, default=10
        Number of clients, which are groups of observers.
    observed : int or float, default=0.1
        Number of observations (int), or number of observations per cell (float > 0). Because cells
        may be visited more than once, the share of observed cells is smaller.
    rank : int, default=2
        Rank of the interaction of sites and months, at most ``min(n_sites, n_months) - 1``; 0 for
        none. The first column factor is linear in time (trends differ by site), the next two are
        seasonal (seasons differ by site), further ones are random.
    family : {"poisson", "negative_binomial", "gaussian", "bernoulli"}, default="poisson"
        - "poisson": counts with mean exp(theta);
        - "negative_binomial": counts with mean ``m = exp(theta)`` and variance ``m + m**2 / size``;
        - "gaussian": numbers with mean theta and variance 1;
        - "bernoulli": presence 1 or absence 0, with probability of presence 1/(1 + exp(-theta)).
    negative_binomial_size : float > 0, default=1.0
        Size of negative binomial counts. With an effort e, it is e times as large, as is that of
        the sum of e independent counts.
    offset_deviation : float, default=0.0
        Standard deviation of the offset of an observation, ``offset_deviation >= 0``: the logarithm
        of the effort of a visit, which is added to its theta. Its mean is 0.
    client_deviation : float, default=0.0
        Standard deviation of the effects of clients, ``client_deviation >= 0``, which are added to
        theta in all of their observations.
    intercept : float, default=1.0
        Mean of theta over all cells.
    site_deviation : float, default=1.0
        Standard deviation of the normally distributed site effects, ``site_deviation >= 0``.
    seasonality : float, default=0.5
        Amplitude of the seasonal effect, a cosine that peaks in June, ``seasonality >= 0``.
    trend : float, default=-0.05
        Change of theta per year. For Poisson counts, -0.05 means 5% fewer every year.
    interaction : float, default=0.3
        Root mean square of the interaction term of theta, ``interaction >= 0``.
    n_observers : int, default=None
        Number of observers, between `n_clients` and the number of observations. None: one observer
        per five observations, the mean in [1]_.
    effort_tail : float, default=1.2
        Tail index of the Pareto distribution of the observers' efforts, ``effort_tail > 0``. With
        1.2, about a tenth of the observers make half of the observations; with 2, a quarter of
        them; towards infinity, all observers have the same mean effort.
    effort_growth : float, default=0.1
        Logarithm of the factor by which the number of observations grows per year.
    home_range : float, default=10.0
        Mean distance of an observer's visits from home, in sites, ``home_range >= 0``. Distances
        follow a rounded Laplace distribution; homes are uniform along the coast.
    grouping : {"random", "region"}, default="random"
        How observers are grouped into clients, whose numbers of observers differ by at most one: at
        random, as in [1]_, or by neighbouring homes, so that clients observe different sites.
    random_state : int, RandomState instance or None, default=None
        Seed. Pass an int for reproducible results.

    Returns
    -------
    Bunch
        - ``clients`` : list of ndarray of shape (n_samples_i, 3), float64, each client's
          observations with columns site, month, count;
        - ``offset`` : list of ndarray of shape (n_samples_i,), the offset of each observation, if
          ``offset_deviation > 0``;
        - ``shape`` : tuple, ``(n_sites, n_months)``;
        - ``observers`` : list of ndarray of int, shape (n_samples_i,), the observer of each
          observation, 0 to ``n_observers - 1``; an observer belongs to one client;
        - ``homes`` : ndarray of shape (n_observers,), the home site of each observer;
        - ``client_effects`` : ndarray of shape (n_clients,), with mean 0, if ``client_deviation >
          0``;
        - ``intercept`` : float;
        - ``row_effects`` : ndarray of shape (n_sites,), with mean 0;
        - ``column_effects`` : ndarray of shape (n_months,), with mean 0;
        - ``row_factors`` : ndarray of shape (n_sites, rank), each column with mean 0;
        - ``column_factors`` : ndarray of shape (n_months, rank), orthogonal columns with mean 0;
        - ``trend`` : ndarray of shape (n_months,), the sum over all sites of the true means.

    Raises
    ------
    TypeError, ValueError
        If a parameter is out of its range, if there are fewer observations than observers or fewer
        observers than clients, or if a Poisson mean exceeds 2**53.

    See Also
    --------
    read_ebird : Real observations, in the same form.

    References
    ----------
    .. [1] A. Dieuleveut, G. Fort, E. Moulines and G. Robin, "Federated Expectation Maximization
       with heterogeneity mitigation and variance reduction", Advances in Neural Information
       Processing Systems 34, 2021, Section 4 and Appendix F.2. There: 9,721 sites, 525 months,
       12,185 observations of 2,465 observers in 10 groups.

    Examples
    --------
    >>> from skfedem.datasets import make_site_counts
    >>> data = make_site_counts(n_sites=50, n_months=24, n_clients=3, observed=600, random_state=0)
    >>> data.shape, sum(len(cells) for cells in data.clients)
    ((50, 24), 600)
    >>> sites, months, counts = data.clients[0].T
    >>> bool(sites.max() < 50 and months.max() < 24 and counts.min() >= 0)
    True
    >>> data.row_factors.shape, data.column_factors.shape, data.trend.shape
    ((50, 2), (24, 2), (24,))
    """
    check_counts(n_sites=n_sites, n_months=n_months, n_clients=n_clients)
    hint = "At most min(n_sites, n_months) - 1; use 0 for none."
    check_number("rank", rank, kind=Integral, low=0, high=min(n_sites, n_months) - 1, hint=hint)
    check_choice("family", family, get_args(FamilyName))
    check_choice("grouping", grouping, _GROUPINGS)
    for name, value in dict(intercept=intercept, trend=trend, effort_growth=effort_growth).items():
        check_number(name, value)
    check_positive(effort_tail=effort_tail, negative_binomial_size=negative_binomial_size)
    check_not_negative(
        offset_deviation=offset_deviation,
        client_deviation=client_deviation,
        site_deviation=site_deviation,
        seasonality=seasonality,
        interaction=interaction,
        home_range=home_range,
    )
    n_samples = _n_observations(observed, n_sites * n_months)
    n_observers = _check_observers(n_observers, n_samples, n_clients)

    rng = random_numbers(random_state)
    truth = Bunch(
        intercept=float(intercept),
        row_effects=site_deviation * _centred(rng.standard_normal(n_sites)),
        column_effects=_month_effects(n_months, seasonality, trend),
        row_factors=_centred(rng.standard_normal((n_sites, rank))),
        column_factors=_month_factors(n_months, rank, rng),
    )
    # The columns of column_factors are orthogonal with mean square 1.
    mean_square = np.mean(np.sum(truth.row_factors**2, axis=1))
    if mean_square > 0:
        truth.row_factors *= interaction / np.sqrt(mean_square)
    trend_of_means = _sums_over_sites(truth, family)
    n_visits = _efforts(n_observers, n_samples, effort_tail, rng)
    homes = rng.randint(n_sites, size=n_observers)
    # Observers in the order of their clients, so that observations need not be sorted.
    if grouping == "random":
        ordered = rng.permutation(n_observers)
    else:
        ordered = np.argsort(homes, kind="stable")
    who = np.repeat(ordered, n_visits[ordered])
    month_ends = _month_ends(n_months, effort_growth)
    members = np.array_split(ordered, n_clients)
    lengths = np.array([n_visits[group].sum() for group in members])
    ends, offset, of_clients = np.cumsum(lengths)[:-1], None, None
    known: dict[str, Any] = {}
    if offset_deviation > 0:
        offset = offset_deviation * rng.standard_normal(n_samples)
        known["offset"] = np.split(offset, ends)
    if client_deviation > 0:
        effects = client_deviation * _centred(rng.standard_normal(n_clients))
        known["client_effects"], of_clients = effects, np.repeat(effects, lengths)
    law = family, negative_binomial_size
    cells = _draw_cells(homes, who, home_range, month_ends, truth, law, offset, of_clients, rng)
    return Bunch(
        **known,
        clients=np.split(cells, ends),
        shape=(n_sites, n_months),
        observers=np.split(who, ends),
        homes=homes,
        trend=trend_of_means,
        **truth,
    )


def _n_observations(observed: float, n_cells: int) -> int:
    if isinstance(observed, Integral):
        check_counts(observed=observed)
        return observed
    hint = "Give an integer number of observations, or a float number of observations per cell."
    check_number("observed", observed, low=0, low_open=True, hint=hint)
    return max(1, round(observed * n_cells))


def _check_observers(n_observers: int | None, n_samples: int, n_clients: int) -> int:
    if n_observers is None:
        n_observers = max(n_clients, n_samples // _OBSERVATIONS_PER_OBSERVER)
    check_counts(n_observers=n_observers)
    if not n_clients <= n_observers <= n_samples:
        raise ValueError(
            f"Expected n_clients <= n_observers <= number of observations, got {n_clients}, "
            f"{n_observers} and {n_samples}. Lower n_clients or n_observers, or raise observed."
        )
    return n_observers


def _centred(values: FloatArray) -> FloatArray:
    return values - values.mean(axis=0)


def _month_effects(n_months: int, seasonality: float, trend: float) -> FloatArray:
    months = np.arange(n_months)
    season = np.cos(2 * np.pi * (months - _PEAK_MONTH) / _MONTHS_PER_YEAR)
    return _centred(seasonality * season + trend * months / _MONTHS_PER_YEAR)


def _month_factors(n_months: int, rank: int, rng: RandomState) -> FloatArray:
    """Orthogonal curves with mean 0 and mean square 1."""
    months = np.arange(n_months)
    angles = 2 * np.pi * months / _MONTHS_PER_YEAR
    curves = rng.standard_normal((n_months, rank))
    for k, curve in enumerate((months, np.cos(angles), np.sin(angles))[:rank]):
        curves[:, k] = curve
    orthogonal, _ = np.linalg.qr(_centred(curves))
    return np.sqrt(n_months) * orthogonal


def _sums_over_sites(truth: Bunch, family: FamilyName) -> FloatArray:
    """Sum of the means over the sites for each month, one month at a time."""
    sums = np.empty(len(truth.column_effects))
    base = truth.intercept + truth.row_effects
    for month, effect in enumerate(truth.column_effects):
        natural = base + effect
        natural += truth.row_factors @ truth.column_factors[month]
        if family in _COUNTS and natural.max() > _LARGEST_LOG_MEAN:
            raise ValueError(
                f"Expected Poisson means up to 2**53, got exp({natural.max():.4g}) in month "
                f"{month}. Lower intercept, site_deviation, seasonality, trend or interaction."
            )
        sums[month] = _mean(natural, family).sum()
    return sums


def _mean(natural: FloatArray, family: FamilyName) -> FloatArray:
    if family == "bernoulli":
        return expit(natural)
    return natural if family == "gaussian" else np.exp(natural)


def _efforts(n_observers: int, n_samples: int, effort_tail: float, rng: RandomState) -> IntArray:
    """Number of observations of each observer: one, and a share of the rest."""
    # Logarithms, as draws overflow if the index is small; below 1e-300, even logarithms would.
    log_efforts = rng.standard_exponential(n_observers) / max(effort_tail, 1e-300)
    efforts = np.exp(log_efforts - log_efforts.max())
    return 1 + rng.multinomial(n_samples - n_observers, efforts / efforts.sum())


def _month_ends(n_months: int, effort_growth: float) -> FloatArray:
    """Ends of the months on an axis along which observations are uniformly distributed."""
    log_shares = effort_growth / _MONTHS_PER_YEAR * np.arange(n_months)
    return np.cumsum(np.exp(log_shares - log_shares.max()))


def _draw_cells(
    homes: IntArray,
    who: IntArray,
    home_range: float,
    month_ends: FloatArray,
    truth: Bunch,
    law: tuple[FamilyName, float],
    offset: FloatArray | None,
    of_clients: FloatArray | None,
    rng: RandomState,
) -> FloatArray:
    """Rows of (site, month, count), one for each observation.

    ``who`` are the observers, and ``of_clients`` the effects of the clients.
    """
    cells = np.empty((len(who), 3))
    for start in range(0, len(who), _BLOCK):
        block = slice(start, start + _BLOCK)
        size = len(who[block])
        # Beyond 1e12, rounding would swallow neighbouring sites.
        distances = np.rint(rng.laplace(0, min(home_range, 1e12), size))
        sites = ((homes[who[block]] + distances) % len(truth.row_effects)).astype(np.intp)
        # Without the last end: a product that is rounded up to it belongs to the last month.
        draws = rng.random_sample(size) * month_ends[-1]
        months = np.searchsorted(month_ends[:-1], draws, side="right")
        natural = truth.intercept + truth.row_effects[sites] + truth.column_effects[months]
        natural += np.einsum("ij,ij->i", truth.row_factors[sites], truth.column_factors[months])
        sizes: Any
        family, sizes = law
        if offset is not None:
            natural += offset[block]
            sizes = sizes * np.exp(offset[block])
        if of_clients is not None:
            natural += of_clients[block]
        counts = _draw_counts(_mean(natural, family), family, sizes, rng)
        cells[block] = np.column_stack([sites, months, counts])
    return cells


def _draw_counts(
    means: FloatArray, family: FamilyName, sizes: FloatArray | float, rng: RandomState
) -> NDArray[Any]:
    if family == "negative_binomial":
        means = rng.gamma(sizes, means / sizes)
    if family in _COUNTS:
        return rng.poisson(means)
    if family == "bernoulli":
        return rng.random_sample(means.shape) < means
    return means + rng.standard_normal(means.shape)
