"""How a client's table is read for an estimator, and what all clients have to agree on for it.

Some tables are read in two steps: each client sends a few *facts*, the server tells all clients
what follows from those of everybody, and the rows of a client are made with that.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from .._data.cells import CellData, mean_of_sums, read_cells, unread_cells
from .._data.clients import read_clients
from .._data.effort import LARGEST_OFFSET, effort_of
from .._data.features import set_columns
from .._data.frame_labels import labels_of_shape, sizes_of_shape
from .._data.long_tables import column, columns_of, is_long_table, numbers
from .._federation import Federation, fingerprint, offsets_of, weights_of_clients
from .._mixed_effects.design import design_of
from .._mixed_effects.fit_steps import federation_of
from .._mixed_effects.records import ClientRecords
from .._mixed_effects.records import read_clients as read_subjects
from .._mixed_effects.settings import checked_settings, solver_of
from .._mixed_effects.start import model_of
from .._networks.mlp_classifier import FederatedMLPClassifier
from .._networks.regressor import FederatedMLPRegressor
from .._serialization import to_bytes
from .._typing import FloatArray, IntArray
from ..impute import FederatedMatrixImputer
from ..mixed_effects import FederatedNonlinearMixedEffects
from ..mixture import FederatedGaussianMixture
from ..models.matrix.families import family_of
from ..models.matrix.start import cell_federation, weights_of_cells
from ..models.mixed_effects.maximization import Theta
from ..models.mixed_effects.model import SentModel
from ..preprocessing import FederatedPCA, FederatedStandardScaler
from ._broadcasts import with_terms
from ._covariates import given_again, known_covariates
from ._messages import Refused
from ._network_reader import network_reader
from ._reader import Agreed, OwnData, OwnTable, Reader
from ._weights import N_FACTS, agree_on_weights, are_possible, facts_of_weights, in_agreed_unit

# Columns of a long table of counts.
SITE, TIME, COUNT = "site", "time", "count"

# Less than any observation has: the total effort of a client is larger.
_LEAST_EFFORT = np.exp(-LARGEST_OFFSET) / 2
# Largest number of rows of a subject: all clients make room for as many, if one has them.
_MOST = 1000


def _reader_of_rows(kind: Any, *, allow_nan: bool = False, weighted: bool = False) -> Reader:
    """Reader of plain tables, whose rows need an agreement only if they have weights."""

    def read(plan: dict[str, Any], data: OwnData) -> OwnTable:
        estimator = kind()
        weights = None if data.sample_weight is None else [data.sample_weight]
        federation, _, _ = read_clients(
            estimator, [data.X], sample_weight=weights, allow_nan=allow_nan
        )
        names = getattr(estimator, "feature_names_in_", None)
        columns = estimator.n_features_in_ if names is None else names.tolist()
        facts = facts_of_weights(federation) if weighted else np.empty(0)
        digest, own = fingerprint(federation, 0, 1), partial(in_agreed_unit, federation)
        return OwnTable(federation.n_samples, columns, facts, digest, own)

    def agree(plan: dict[str, Any], lengths: IntArray, facts: FloatArray) -> Agreed:
        if weighted:
            return agree_on_weights(lengths, facts, plan["parameters"]["client_weights"])
        return Agreed(weights_of_clients(lengths, "n_samples"), {})

    if not weighted:
        return Reader(kind, read, agree)
    return Reader(
        kind,
        read,
        agree,
        n_facts=lambda plan: N_FACTS,
        are_possible=are_possible,
        takes=("sample_weight",),
    )


def _read_matrix(plan: dict[str, Any], data: OwnData) -> OwnTable:
    """Cells of a matrix, of triplets, or of a long table with names.

    The facts are the sum of the observations, their number, and their number or total effort.
    """
    cells, client_weights = _own_cells(plan, data), plan["parameters"]["client_weights"]
    # In the order of a simulation, where each client is a segment.
    efforts = np.add.reduceat(cells.counts, [0])
    facts = np.concatenate([cells.sums, [cells.n_observations.sum()], efforts])

    def federation(told: dict[str, Any]) -> Federation:
        return cell_federation(_own_cells(plan, data, told["origin"]), client_weights)

    digest = fingerprint(cell_federation(cells, client_weights), 0, 1)
    complete = partial(with_terms, known=known_covariates(plan).design)
    return OwnTable(len(cells.rows), cells.shape[1], facts, digest, federation, complete)


def _own_cells(plan: dict[str, Any], data: OwnData, origin: float = 0.0) -> CellData:
    """Cells of one client."""
    shape, parameters, (X, _, offset) = plan["shape"], plan["parameters"], data
    names = ("family", "missing_values", "effects", "rows")
    estimator = FederatedMatrixImputer(**{name: parameters[name] for name in names})
    if is_long_table(X) and {SITE, TIME, COUNT} <= {*X}:
        X, offset = _numbered(X, offset, shape)
    return read_cells(
        estimator,
        [X],
        shape=shape,
        family=family_of(estimator.family),
        offset=None if offset is None else [offset],
        origin=origin,
    )


def _labels(plan: dict[str, Any], told: dict[str, Any], agreed: dict[str, Any]) -> dict[str, Any]:
    labels, covariates = labels_of_shape(plan["shape"]), known_covariates(plan)
    return {
        "row_covariate_names_": covariates.rows.names,
        "column_covariate_names_": covariates.columns.names,
        "row_groups_": covariates.groups,
        "_row_labels": labels[0],
        "_column_labels": labels[1],
        "_covariates": covariates,
        "_given_covariates": given_again(covariates),
        "client_effects_": None,
        "client_effects_penalty_": None,
    }


def _completed_rows(estimator: Any, plan: dict[str, Any], data: OwnData) -> dict[str, Any]:
    """Sites where this client was, with fitted means in place of missing cells.

    These are for the offset that a matrix has there, else for an offset of 0, as ``transform`` has.
    """
    filled, own = np.asarray(estimator.fitted_mean()), _own_cells(plan, data._replace(offset=None))
    if data.offset is not None:
        filled = estimator._at_offset(filled, data.offset)
    cells, numbers = (own.rows, own.columns), np.zeros_like(filled)
    sums = np.zeros_like(filled)
    np.add.at(numbers, cells, own.counts)
    np.add.at(sums, cells, own.counts * own.values)
    np.divide(sums, numbers, out=filled, where=numbers > 0)
    visited = np.unique(own.rows)
    names = [range(size) if isinstance(size, int) else size for size in plan["shape"]]
    columns = zip(names[1], filled[visited].T, strict=True)
    return {SITE: [names[0][row] for row in visited]} | {str(name): own for name, own in columns}


def _numbered(table: Any, offset: Any, shape: Any) -> tuple[FloatArray, Any]:
    """Triplets of a long table, whose sites and times are names in a shape, and their offsets."""
    columns, triplets = columns_of(table), []
    for name, axis in zip((SITE, TIME), shape, strict=True):
        if isinstance(axis, int):
            raise Refused(f"columns: expected a plan with names for column {name!r}")
        numbers_of = {str(own): float(number) for number, own in enumerate(axis)}
        names = [str(own) for own in column(columns, name, "names", "").tolist()]
        unknown = [own for own in names if own not in numbers_of]
        if unknown:
            raise ValueError(f"Expected every {name} to be one of the plan, got {unknown[0]!r}.")
        triplets.append([numbers_of[own] for own in names])
    counts = numbers(columns, COUNT, "", "counts")
    if offset is not None:
        offset = effort_of(offset, counts, "", is_triplets=True)
    rows, known = np.column_stack([*triplets, counts]), np.flatnonzero(~np.isnan(counts))
    order = known[np.lexsort(rows[known].T[::-1])]  # as ``read_counts`` has them
    return rows[order], None if offset is None else offset[order]


def _are_whole(facts: FloatArray) -> bool:
    return bool(((facts >= 0) & (facts == np.floor(facts))).all())


def _are_of_cells(facts: FloatArray) -> bool:
    _, n_observations, effort = facts
    return _are_whole(facts[1:2]) and n_observations >= 1 and bool(effort > _LEAST_EFFORT)


def _agree_on_cells(plan: dict[str, Any], lengths: IntArray, facts: FloatArray) -> Agreed:
    """Origin, weights, and what the fit knows of cells before it asks for them."""
    parameters, (sums, n_observations, counts) = plan["parameters"], facts.T
    from_mean = parameters["effects"] != "none" and parameters["family"] == "gaussian"
    origin = mean_of_sums(sums, n_observations.sum()) if from_mean else 0.0
    shape, ids = sizes_of_shape(plan["shape"]), plan["roster"]
    data = unread_cells(lengths, sums, ids, shape, origin)
    weights = weights_of_cells(lengths, counts, parameters["client_weights"])
    return Agreed(weights, {"origin": origin}, data)


def _population_of(plan: dict[str, Any]) -> Any:
    """The estimator of a plan, whose model is the client's own function."""
    return FederatedNonlinearMixedEffects(**plan["parameters"])


def _read_subjects(plan: dict[str, Any], data: OwnData) -> OwnTable:
    """Subjects of a long table.

    The facts are the largest number of rows of a subject, and numbers of responses, with and
    without a value.
    """
    estimator = _population_of(plan)
    design = design_of(estimator)
    settings, own = checked_settings(estimator, design), read_subjects([data.X], None, design)
    facts = np.array([own.n_places, own.n_observations, own.n_missing], dtype=np.float64)

    def federation(told: dict[str, Any]) -> Federation:
        if told["n_places"] > _MOST:
            raise Refused("too large: number of rows of a subject")
        own = read_subjects([data.X], None, design, told["n_places"])
        return federation_of(own, estimator.client_weights)

    def complete(sent: Any) -> Any:
        if not isinstance(sent, SentModel):
            return sent
        return model_of(design, sent.n_observations, sent.n_nodes).received(sent)

    names = [design.subject, design.response, *design.regressors, *design.covariates]
    n_subjects = int(own.offsets[-1])
    digest = fingerprint(federation_of(own, estimator.client_weights), 0, 1)
    return OwnTable(n_subjects, names, facts, digest, federation, complete, solver_of(settings))


def _agree_on_subjects(plan: dict[str, Any], lengths: IntArray, facts: FloatArray) -> Agreed:
    """Places for observations, and what the fit knows of subjects before it asks."""
    n_places = int(facts[:, 0].max())
    data = ClientRecords(
        None,
        offsets_of(lengths),
        np.empty(0, dtype=np.uint64),
        np.array(plan["roster"]),
        n_missing=int(facts[:, 2].sum()),
        n_places=n_places,
        n_observations=int(facts[:, 1].sum()),
    )
    weights = weights_of_clients(lengths, plan["parameters"]["client_weights"])
    return Agreed(weights, {"n_places": n_places}, data)


def _design(plan: dict[str, Any], told: dict[str, Any], agreed: dict[str, Any]) -> dict[str, Any]:
    return {"_design": design_of(_population_of(plan)), "_theta": Theta(*told["_theta"])}


def _parameters_of_subjects(estimator: Any, plan: dict[str, Any], data: OwnData) -> dict[str, Any]:
    """Parameters of each subject, by column."""
    table = estimator.individual_parameters(data.X)
    return {name: np.asarray(table[name]) for name in table}


READERS: Mapping[str, Reader] = {
    FederatedGaussianMixture.__name__: _reader_of_rows(FederatedGaussianMixture, weighted=True),
    FederatedStandardScaler.__name__: _reader_of_rows(FederatedStandardScaler, allow_nan=True),
    FederatedPCA.__name__: _reader_of_rows(FederatedPCA),
    FederatedMatrixImputer.__name__: Reader(
        FederatedMatrixImputer,
        _read_matrix,
        _agree_on_cells,
        n_facts=lambda plan: 3,
        are_possible=_are_of_cells,
        has_shape=True,
        known=_labels,
        personal=_completed_rows,
        takes=("offset",),
    ),
    FederatedNonlinearMixedEffects.__name__: Reader(
        FederatedNonlinearMixedEffects,
        _read_subjects,
        _agree_on_subjects,
        n_facts=lambda plan: 3,
        are_possible=lambda facts: _are_whole(facts) and facts[0] <= min(_MOST, facts[1:].sum()),
        known=_design,
        personal=_parameters_of_subjects,
    ),
    FederatedMLPClassifier.__name__: network_reader(FederatedMLPClassifier, has_classes=True),
    FederatedMLPRegressor.__name__: network_reader(FederatedMLPRegressor, has_classes=False),
}
"""Readers by the name of the estimator."""


# Attributes that tell of other clients or of the course of the fit, which clients do not get.
_OF_THE_SERVER = ("client_", "history_", "setup_messages_", "loss_curve_", "_memory")


def told_of(estimator: Any) -> dict[str, Any]:
    """Fitted attributes that clients get at the end: numbers, arrays and text."""
    told, parameters = {}, estimator.get_params(deep=False)
    for name, value in vars(estimator).items():
        if name not in parameters and not name.startswith(_OF_THE_SERVER):
            try:
                to_bytes(value)
            except TypeError:
                continue
            told[name] = value
    return told


def fitted_of(
    plan: dict[str, Any],
    told: dict[str, Any],
    table: OwnTable,
    agreed: dict[str, Any],
    states: tuple[Any, ...],
) -> Any:
    """The fitted estimator, as a client knows it."""
    reader = reader_of(plan["estimator"])
    estimator = reader.kind(**plan["parameters"])
    set_columns(estimator, table.columns)
    vars(estimator).update(told | reader.known(plan, told, agreed))
    if reader.own_model:
        vars(estimator).update(reader.own_model(states))
    return estimator


def reader_of(estimator: str) -> Reader:
    """Reader for an estimator."""
    if estimator not in READERS:
        raise Refused(f"estimator: {estimator} is unknown")
    return READERS[estimator]
