"""Labels of axes: names, symbols and units of the notation table."""

from __future__ import annotations

_SERIES = {
    "round": "round",
    "epoch": "epochs",
    "bits": "uplink (bits)",
    "log_likelihood": "log-likelihood (nats per row)",
    "objective": "objective F (nats)",
    "field_sq_norm": "‖H‖², field",
    "mean_field_sq_norm": "‖h(Ŝ)‖², mean field",
    "step_size": "step size γ",
    "n_active": "active clients",
    "uplink_bits": "uplink (bits per round)",
    "downlink_bits": "downlink (bits per round)",
    "safeguarded": "times the safeguard acted",
    "weights": "weights π",
    "singular_values": "singular values",
}


def series_label(name):
    """Label of an axis on which a series is drawn, or which ``x`` names."""
    return _SERIES.get(name, name.replace("_", " "))
