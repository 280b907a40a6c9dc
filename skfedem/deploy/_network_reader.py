"""Tables of networks: the columns of the plan's targets, and the features, all others."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._data.clients import read_clients
from .._data.tables import is_frame
from .._data.targets import stacked_targets
from .._federation import Federation, digest_of, fingerprint
from .._networks.run import Units, in_units, moments_of, units_of
from .._rows import LabelledRows, precision_of
from .._typing import FloatArray, IntArray
from ..solvers.hard_em import ClientStates, ServerOptimizer, hard_em
from ._messages import Refused
from ._reader import Agreed, OwnData, OwnTable, Reader
from ._weights import N_FACTS, agree_on_weights, are_possible, facts_of_weights, in_agreed_unit


class _OwnTable(NamedTuple):
    """Features and targets of a client."""

    federation: Federation
    columns: list[str]
    targets: NDArray[Any]


def network_reader(kind: Any, *, has_classes: bool) -> Reader:
    """Reader for networks, whose targets are classes or numbers."""
    if has_classes:
        return Reader(
            kind,
            partial(_read_classes, kind),
            _agree_on_classes,
            n_facts=lambda plan: N_FACTS,
            are_possible=are_possible,
            known=lambda plan, told, agreed: {**_classes(agreed), "_units": None},
            personal=_predictions,
            has_target=True,
            has_classes=True,
            own_model=_own_model,
            takes=("sample_weight",),
        )
    return Reader(
        kind,
        partial(_read_numbers, kind),
        _agree_on_units,
        n_facts=lambda plan: N_FACTS + len(_names(plan)) + 1,
        are_possible=lambda facts: are_possible(facts[:N_FACTS]) and facts[-1] >= 0,
        known=lambda plan, told, agreed: {**_form(plan), "_units": _units(agreed)},
        personal=_predictions,
        has_target=True,
        own_model=_own_model,
        takes=("sample_weight",),
    )


def _names(plan: dict[str, Any]) -> list[str]:
    """Columns of the targets."""
    target = plan["target"]
    return [target] if isinstance(target, str) else [*target]


def _features(plan: dict[str, Any], X: Any) -> Any:
    """Columns of the features."""
    if not is_frame(X):
        raise Refused("target: expected a table with names of columns, as of pandas or polars")
    names, columns = _names(plan), [*X.columns]
    for name in names:
        if name not in columns:
            raise Refused(f"target: the table has no column {name!r}")
    return X[[name for name in columns if name not in names]]


def _own_table(kind: Any, plan: dict[str, Any], data: OwnData, *, classes: bool) -> _OwnTable:
    """Features and targets of a client, in rows of positive weight."""
    estimator, features = kind(), _features(plan, data.X)
    weights = None if data.sample_weight is None else [data.sample_weight]
    federation, _, _ = read_clients(estimator, [features], sample_weight=weights)
    target = plan["target"] if isinstance(plan["target"], str) else [*plan["target"]]
    targets = stacked_targets([features], [data.X[target]], classes=classes, sample_weight=weights)
    return _OwnTable(federation, estimator.feature_names_in_.tolist(), targets)


def _digest(own: _OwnTable, targets: NDArray[Any]) -> str:
    """Digest of features, targets and weights."""
    rows = LabelledRows(own.federation.rows, targets)
    return fingerprint(own.federation._replace(rows=rows), 0, 1)


def _read_classes(kind: Any, plan: dict[str, Any], data: OwnData) -> OwnTable:
    """Rows with classes; the facts are those of weights."""
    own = _own_table(kind, plan, data, classes=True)
    labels, numbers = np.unique(own.targets, return_inverse=True)

    def federation(agreed: dict[str, Any]) -> Federation:
        classes = _classes(agreed)["classes_"]
        unknown = [label for label in labels.tolist() if label not in classes.tolist()]
        if unknown:
            raise ValueError(f"Expected labels of the plan's classes, got {unknown[0]!r}.")
        rows = LabelledRows(own.federation.rows, np.searchsorted(classes, own.targets))
        return in_agreed_unit(own.federation._replace(rows=rows), agreed)

    return OwnTable(
        own.federation.n_samples,
        own.columns,
        facts_of_weights(own.federation),
        digest_of([_digest(own, numbers), str(labels.tolist())]),
        federation,
        solver=hard_em(ServerOptimizer()),
        classes=labels.tolist(),
    )


def _classes(agreed: dict[str, Any]) -> dict[str, Any]:
    """Classes of all clients."""
    return {"classes_": np.array(agreed["classes"])}


def _agree_on_classes(plan: dict[str, Any], lengths: IntArray, facts: FloatArray) -> Agreed:
    """Classes of the plan, or of all clients."""
    classes = {"classes": sorted({*plan["classes"]})}
    agreed = agree_on_weights(lengths, facts, plan["parameters"]["client_weights"])
    data = len(classes["classes"]), _classes(classes), None
    return agreed._replace(told=classes | agreed.told, data=data)


def _read_numbers(kind: Any, plan: dict[str, Any], data: OwnData) -> OwnTable:
    """Rows with numbers; the facts are those of weights, and moments of the targets."""
    own = _own_table(kind, plan, data, classes=False)
    targets = own.targets[:, None] if own.targets.ndim == 1 else own.targets

    def federation(agreed: dict[str, Any]) -> Federation:
        scaled = in_units(targets, _units(agreed)).astype(precision_of(own.federation.rows))
        rows = LabelledRows(own.federation.rows, scaled)
        return in_agreed_unit(own.federation._replace(rows=rows), agreed)

    return OwnTable(
        own.federation.n_samples,
        own.columns,
        np.append(facts_of_weights(own.federation), moments_of(own.federation, targets)[0]),
        _digest(own, targets),
        federation,
        solver=hard_em(ServerOptimizer()),
    )


def _form(plan: dict[str, Any]) -> dict[str, Any]:
    """Whether predictions have one dimension, as targets of one column do in scikit-learn."""
    return {"_is_flat": len(_names(plan)) == 1}


def _agree_on_units(plan: dict[str, Any], lengths: IntArray, facts: FloatArray) -> Agreed:
    """Weights, and units of the targets."""
    of_weights, moments = facts[:, :N_FACTS], facts[:, N_FACTS:]
    agreed = agree_on_weights(lengths, of_weights, plan["parameters"]["client_weights"])
    units = units_of(agreed.weights, moments)
    data = len(units.mean), _form(plan), units
    return agreed._replace(told=units._asdict() | agreed.told, data=data)


def _units(agreed: dict[str, Any]) -> Units:
    """Units of the targets, as all clients know them."""
    return Units(agreed["mean"], agreed["scale"])


class _OwnModel(NamedTuple):
    """What predictions by the client's own model need to know."""

    ids: IntArray
    states: ClientStates


def _own_model(states: tuple[Any, ...]) -> dict[str, Any]:
    return {"_memory": _OwnModel(np.arange(1), ClientStates(*states))}


def _predictions(estimator: Any, plan: dict[str, Any], data: OwnData) -> dict[str, Any]:
    """Predictions for the client's rows by its own model, or the global one if it has none."""
    rows, is_own = [_features(plan, data.X)], bool(plan["parameters"]["keep_local"])
    predicted = estimator.predict(rows, personal=is_own)[0]
    if hasattr(estimator, "classes_"):
        (probabilities,) = estimator.predict_proba(rows, personal=is_own)
        shares = zip(estimator.classes_.tolist(), probabilities.T, strict=True)
        return {_names(plan)[0]: predicted} | {f"P({label})": share for label, share in shares}
    columns = predicted[:, None] if predicted.ndim == 1 else predicted
    return dict(zip(_names(plan), columns.T, strict=True))
