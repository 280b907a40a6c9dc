"""Plots of fitted estimators: how a fit went, and what was fitted.

Displays follow scikit-learn's conventions: ``from_estimator`` draws, the constructor only takes the
data, ``plot`` draws again, and ``figure_`` and ``ax_`` give access to the result. They need
matplotlib (``pip install matplotlib``), which is not imported before something is drawn.
"""

from ._convergence import ConvergenceDisplay
from ._imputation import ImputationDisplay

__all__ = ["ConvergenceDisplay", "ImputationDisplay"]
