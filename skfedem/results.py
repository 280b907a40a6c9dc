"""What methods and attributes of fitted estimators return."""

from ._imputer.totals import Totals
from ._imputer.trend import Trend
from .clients.local import SetUpMessage

__all__ = ["SetUpMessage", "Totals", "Trend"]
