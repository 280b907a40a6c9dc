"""Networks and logistic regression fitted by hard EM: FedAvg and its relatives."""

from __future__ import annotations

from .classifier import NetworkClassifier
from .perceptron import FederatedMLP


class FederatedMLPClassifier(NetworkClassifier, FederatedMLP):
    """Neural network classifier fitted to the rows of several clients without pooling them.

    In each round, clients train parameters of their own by minibatch gradient descent, and the
    server combines them. This is hard EM for a hierarchical model [1]_, whose prior of a client's
    parameters decides what the algorithm is: a Gaussian prior gives FedAvg and FedProx, a Laplace
    prior the median, a mixture an ensemble of models, and a spike-and-slab prior FedSparse, which
    learns to prune. With ``control_variates=True``, gradients are corrected by SCAFFOLD [2]_.
    A client may lack classes.

    The clients are simulated on this machine: their messages are computed and counted, not sent.
    Parameters that a client trained on its rows are not private. A fitted estimator, and any pickle
    of it, contains each client's own model.

    Read more in :doc:`/perceptron`.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int, default=(100,)
        Number of units of each hidden layer; () is logistic regression.
    activation : {"identity", "logistic", "tanh", "relu"}, default="relu"
        Activation of the hidden units.
    alpha : float >= 0, default=0.0001
        Penalty ``alpha / 2 * sum(coefficients**2)`` that is added to the mean loss of a row.
    prior : {"gaussian", "laplace", "mixture", "spike_slab"} or Prior, default="gaussian"
        Prior of a client's own parameters; see ``skfedem.priors``. An object keeps its own settings
        and ignores the next eight parameters.
    prior_precision : float >= 0, or "auto", default="auto"
        Precision λ of the prior, relative to the mean loss of a row. "auto" is 0 (for FedAvg, the
        median and FedSparse), or 0.1 for a mixture.
    n_components : int, default=2
        Number of models of a mixture.
    l0_penalty : float >= 0, default=1e-6
        FedSparse's penalty λ₀ for each parameter that is kept, in nats per row.
    target_sparsity : float in (0, 1), default=None
        Share of the parameters that FedSparse prunes at least; None to leave it to the penalty.
    warmup_rounds : int, default=20
        Number of rounds before FedSparse's gates act.
    gates : {"auto", "units", "features", "weights"}, default="auto"
        What FedSparse prunes: hidden units, input features or single coefficients. "auto" is units,
        or features if there are no hidden layers.
    gate_temperature : float > 0, default=0.035
        Temperature of FedSparse's gates, relative to the mean norm of a layer.
    prune_threshold : float in [0, 1), default=0.1
        FedSparse prunes groups that are kept with at most this probability.
    control_variates : bool, default=False
        Whether to use SCAFFOLD; for Gaussian and spike-and-slab priors without compression.
    server_optimizer : {"average", "sgd", "adam", "adamax"}, default="average"
        How the server moves its parameters: to the closed form of the prior, such as the mean of
        the clients' parameters, or by a step along an ascent direction.
    server_learning_rate : float > 0, or "auto", default="auto"
        Learning rate of the server's steps. "auto" is 0.001 for "adam" and "adamax", and ``1 -
        server_momentum`` for "sgd".
    server_momentum : float in [0, 1), default=0.9
        Momentum of the server's steps.
    local_epochs : int, default=1
        Number of passes of a client over its rows in a round.
    batch_size : int or None, default=64
        Number of rows in a minibatch; None for all rows of a client.
    learning_rate_init : float > 0, default=0.05
        Learning rate of the clients.
    compressor : {"dithering", "block", "rand_k"}, Compressor or None, default="dithering"
        Operator that compresses the updates, see ``skfedem.compression``. Ignored if ``omega=0``.
    omega : float >= 0, default=0.0
        Relative variance ω of the compression: E||Quant(x)||² <= (1 + ω)||x||². 0 disables it.
    control_step : float in [0, 1], or "auto", default="auto"
        Step size α of FedEM's memories V_i of the updates, for Gaussian priors: clients send the
        difference of an update from V_i. "auto" is 0.1 / (1 + ω) with compression, otherwise 0.
    participation : float in (0, 1] or int, default=1.0
        Probability that a client takes part in a round, or the number of clients that do.
    client_weights : {"n_samples", "uniform"}, default="n_samples"
        Weight w_s of a client: its share of all rows, or the same for all.
    max_iter : int, default=200
        Number of rounds.
    eval_every : int, default=10
        Number of rounds between scores of validation data.
    keep_local : bool, default=True
        Whether to keep the clients' own models, one vector of parameters for each.
    random_state : int, RandomState instance or None, default=None
        Pass an int for reproducible results.
    warm_start : bool, default=False
        Whether to continue from the last fit, with the states of clients whose label (or position
        in a list) is known. With an integer ``random_state``, two fits of k rounds equal one of 2k.
    n_jobs : int, default=None
        Number of threads that simulate the clients, as in joblib. The result does not depend on it.
    checkpoint : path-like, default=None
        File in which to save the run, so that ``fit(..., resume_from=path)`` can continue it.
    checkpoint_every : int, default=100
        Number of rounds between saves.
    verbose : int, default=0
        Verbosity: 1 prints every tenth round, 2 prints every round.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Classes of all clients.
    coefs_ : list of ndarray of shape (n_inputs, n_units)
        Coefficients of each layer of the global model; of shape (n_components, n_inputs, n_units)
        for a mixture.
    intercepts_ : list of ndarray of shape (n_units,)
        Intercepts of each layer, likewise.
    sparsity_ : float
        Share of the parameters that are pruned, which are 0.
    loss_ : float
        Mean loss of the clients during their training in the last round.
    loss_curve_ : list of float
        These losses for each round; NaN for rounds without clients.
    n_iter_ : int
        Number of rounds of the last ``fit``, and of all calls of ``partial_fit`` after it.
    history_ : dict of ndarray
        History of the fit: row 0 is the start, row r the state after round r. The entries are
        ``round``, ``epoch``, ``loss``, ``sparsity``, ``gate_disagreement`` (mean absolute
        difference of π_s and θ over gates and clients), ``score`` and ``local_score`` (on
        validation data: of the global model, and the mean over clients of their own models'
        scores), ``n_active``, ``uplink_bits`` and ``downlink_bits`` (of all clients together;
        numbers have 32 bits). Values that were not evaluated are NaN.
    setup_messages_ : list of SetUpMessage
        What clients sent and received before the rounds of the last call: the name of each message,
        the number of clients, and all their bits up and down; see :doc:`/what_leaves_a_client`.
    n_layers_, n_outputs_ : int
        Number of layers, including that of the features, and of outputs.
    out_activation_ : str
        Function of the outputs.
    n_clients_ : int
        Number of clients.
    client_ids_ : ndarray of shape (`n_clients_`,)
        Label of each client: the sorted labels from ``clients``, or else its position in the list.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if the data had string names.

    See Also
    --------
    skfedem.priors : Priors, and how to write another.
    sklearn.neural_network.MLPClassifier : The same networks on pooled rows.

    References
    ----------
    .. [1] C. Louizos, M. Reisser, J. Soriaga and M. Welling, "An Expectation-Maximization
       perspective on federated learning", 2021.
    .. [2] S. P. Karimireddy, S. Kale, M. Mohri, S. Reddi, S. Stich and A. T. Suresh, "SCAFFOLD:
       Stochastic controlled averaging for federated learning", ICML 2020 (option II).

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem import FederatedMLPClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = [rng.normal(size=(60, 2)) + shift for shift in (-1, 0, 1)]
    >>> y = [np.where(table.sum(axis=1) > 0, "high", "low") for table in X]
    >>> clf = FederatedMLPClassifier(hidden_layer_sizes=(), random_state=0).fit(X, y)
    >>> clf.score(X, y) > 0.95
    True
    >>> clf.predict([[2.0, 1.0]])
    array(['high'], dtype='<U4')
    """
