"""Labels of axes, names, symbols and units of the notation table, and ticks of bits."""

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


def mark_bits(line, scale):
    """Ticks of an axis of bits, with SI prefixes."""
    from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator, ScalarFormatter

    low, high = line.get_view_interval()
    if scale == "log" and high >= 10 * low:
        return  # powers of ten are enough
    # Labels are long, and few fit.
    line.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    line.set_minor_locator(NullLocator())
    alike = high - low <= 1e-3 * high  # to the six digits that follow
    line.set_major_formatter(ScalarFormatter() if alike else EngFormatter())
