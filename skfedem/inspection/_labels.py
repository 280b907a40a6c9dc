"""Axis labels, with names, symbols and units as in the notation table; ticks of bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axis import Axis

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


def series_label(name: str) -> str:
    """Axis label of a series, or of the quantity ``x``."""
    return _SERIES.get(name, name.replace("_", " "))


def mark_bits(line: Axis, scale: str) -> None:
    """Set the ticks of an axis of bits, with SI prefixes."""
    from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator, ScalarFormatter

    low, high = line.get_view_interval()
    if scale == "log" and high >= 10 * low:
        return  # the default ticks, powers of ten, are enough
    # Few ticks, because their labels are long.
    line.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    line.set_minor_locator(NullLocator())
    alike = high - low <= 1e-3 * high  # to the six digits that EngFormatter writes
    line.set_major_formatter(ScalarFormatter() if alike else EngFormatter())
