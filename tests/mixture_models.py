"""A small mixture model in standard units, for the tests of its parts."""

import numpy as np
import pytest

from problems import COVARIANCE_TYPES, mean_statistics, mixture_model, mixture_parameters, stack
from skfedem.models.mixture.covariances import COVARIANCES

every_covariance_type = pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)


def unit_covariances(covariance_type, n_components, n_features):
    """Covariances of 1 along all axes, in scikit-learn's shape."""
    structure = COVARIANCES[covariance_type]
    identity = np.eye(n_features) if structure.has_matrices else 1.0
    return np.broadcast_to(identity, structure.shape(n_components, n_features)).copy()


def small_model(covariance_type, n_components=3, n_features=3, **params):
    """A model in units of its own, and rows in more than two dimensions."""
    generator = np.random.default_rng(1)
    rows = generator.standard_normal((40, n_features)) @ np.diag([1.0, 2.0, 0.5][:n_features])
    federation = stack(np.split(rows + [3.0, 0.0, -1.0][:n_features], [5, 6, 20]))
    return mixture_model(federation, covariance_type, n_components, **params), federation


def table(model, statistics):
    return statistics.reshape(model.n_components, model.n_functions)


def plain(model, parameters):
    """Parameters as the literal functions and scikit-learn take them, in standard units."""
    return parameters.weights, parameters.means, parameters.covariances


def at_rows(covariance_type, **params):
    model, federation = small_model(covariance_type, **params)
    return model, mean_statistics(model, federation, mixture_parameters(model))
