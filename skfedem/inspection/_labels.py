"""Labels of axes: names, symbols and units of the notation table."""

from __future__ import annotations

_SERIES = {
    "round": "round",
    "log_likelihood": "log-likelihood (nats per row)",
    "objective": "objective F (nats)",
    "field_sq_norm": "‖H‖², field",
    "mean_field_sq_norm": "‖h(Ŝ)‖², mean field",
    "step_size": "step size γ",
    "n_active": "active clients",
    "uplink_bits": "uplink (bits per round)",
    "downlink_bits": "downlink (bits per round)",
    "safeguarded": "halvings of the step",
    "weights": "weights π",
    "singular_values": "singular values",
}


def series_label(name, histories):
    """Label of an axis on which a series is drawn, or which ``x`` names."""
    if name == "bits":
        return "uplink (bits)"
    if name == "epoch":
        return f"epochs (passes over all {_observations(histories)})"
    return _SERIES.get(name, name.replace("_", " "))


def _observations(histories):
    """What an epoch is a pass over: rows of a mixture, observed cells of a matrix."""
    over_cells = {"objective" in history for history in histories}
    if len(over_cells) > 1:
        return "data"
    return "observed cells" if over_cells.pop() else "rows"
