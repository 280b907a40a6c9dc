"""Networks and linear regression fitted by hard EM: FedAvg and its relatives."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import Tags

from .._typing import ClientsLike, RowWeights
from .estimator import Targets
from .perceptron import FederatedMLP

Array = NDArray[Any]
Answer = Any
"""An array for one table, or a tuple with one for each client of a list."""

# A number of 32 bits is infinite beyond 3e38; coefficients and losses need room.
_LARGEST = 1e30


class FederatedMLPRegressor(RegressorMixin, FederatedMLP):
    """Neural network regressor fitted to the rows of several clients without pooling them.

    Algorithms, priors and parameters are those of ``FederatedMLPClassifier``; the loss is half the
    squared error.

    Targets are centred and scaled before they are learned, by their federated mean and variance, so
    that the learning rate does not depend on their units; attributes and losses are in those of the
    targets, but ``alpha`` is not.

    Read more in :doc:`/perceptron`.

    Parameters
    ----------
    hidden_layer_sizes, activation, alpha, prior, prior_precision, n_components, l0_penalty
        As in ``FederatedMLPClassifier``.
    target_sparsity, warmup_rounds, gates, gate_temperature, prune_threshold, control_variates
        As in ``FederatedMLPClassifier``.
    server_optimizer, server_learning_rate, server_momentum, local_epochs, batch_size
        As in ``FederatedMLPClassifier``.
    learning_rate_init, compressor, omega, control_step, participation, client_weights, max_iter
        As in ``FederatedMLPClassifier``.
    eval_every, keep_local, random_state, warm_start, n_jobs, checkpoint, checkpoint_every
        As in ``FederatedMLPClassifier``.
    verbose
        As in ``FederatedMLPClassifier``.

    Attributes
    ----------
    coefs_, intercepts_, sparsity_, loss_, loss_curve_, n_iter_, history_, n_layers_
        As in ``FederatedMLPClassifier``.
    setup_messages_, n_outputs_, out_activation_, n_clients_, client_ids_, n_features_in_
        As in ``FederatedMLPClassifier``.
    feature_names_in_
        As in ``FederatedMLPClassifier``.

    See Also
    --------
    skfedem.priors : Priors, and how to write another.
    sklearn.neural_network.MLPRegressor : The same networks on pooled rows.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem import FederatedMLPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = [rng.normal(size=(60, 2)) + shift for shift in (-1, 0, 1)]
    >>> y = [table @ [3.0, -2.0] + 1.0 for table in X]
    >>> reg = FederatedMLPRegressor(hidden_layer_sizes=(), random_state=0).fit(X, y)
    >>> reg.coefs_[0].ravel().round(1)
    array([ 3., -2.])
    """

    _loss: Literal["squared_error"] = "squared_error"

    def partial_fit(
        self,
        X: ClientsLike,
        y: Targets,
        *,
        clients: ArrayLike | None = None,
        sample_weight: RowWeights | None = None,
    ) -> Self:
        """Run one round on these rows.

        Parameters
        ----------
        X, y, clients, sample_weight
            As in ``fit``. Clients are recognised by their labels (in a list, by their positions);
            new ones join, and those without rows in this call do not take part.

        Returns
        -------
        self : FederatedMLPRegressor

        Raises
        ------
        TypeError, ValueError
            If data or parameters are invalid; the estimator is then left unchanged.
        """
        memory = self._last_memory()
        return self._fit(X, y, memory, 1, clients, sample_weight, in_stream=True)

    def _encoded(self, y: Array, continued: bool) -> tuple[Array, int, dict[str, Any]]:
        """Targets in two dimensions."""
        targets = y[:, None] if y.ndim == 1 else y
        largest = np.abs(targets).max()
        if largest > _LARGEST:
            raise ValueError(
                f"Expected targets up to {_LARGEST:g}, as messages have numbers of 32 bits, got "
                f"{largest:g}. Give them in other units."
            )
        return targets, targets.shape[1], {"_is_flat": y.ndim == 1}

    def score(
        self,
        X: ClientsLike,
        y: Targets,
        sample_weight: RowWeights | None = None,
        *,
        clients: ArrayLike | None = None,
        personal: bool = False,
    ) -> float:
        """Coefficient of determination R².

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or a list of them
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), or a list of them
        sample_weight : array-like of shape (n_samples,), or a list of them, default=None
        clients, personal
            As in ``predict``.

        Returns
        -------
        r2 : float
            Over all rows, whichever client holds them.

        Raises
        ------
        NotFittedError, TypeError, ValueError
            As in ``predict``; and if ``y`` or ``sample_weight`` does not match X.
        """
        return self._score(r2_score, X, y, sample_weight, clients, personal)

    def _predicted(self, responses: Array) -> Array:
        return responses[:, 0] if self._is_flat else responses

    def _of_outputs(self, outputs: Array, model: Any) -> Array:
        return outputs

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
