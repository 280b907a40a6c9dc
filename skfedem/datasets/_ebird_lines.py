"""Lines of a text file whose fields are separated by tabs, checked before they are parsed."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import BytesIO
from itertools import islice
from typing import TYPE_CHECKING

from .._error_messages import plural
from .._typing import FilePath
from .._warnings import warn

if TYPE_CHECKING:
    from pandas import DataFrame

OPTIONS = dict(
    sep="\t",
    quoting=csv.QUOTE_NONE,
    dtype=str,
    keep_default_na=False,
    index_col=False,
    # One character for each byte, so that any file can be read.
    encoding="latin-1",
)
# Number of bad lines that a message lists.
_MOST_LISTED = 20


def read_lines(
    path: FilePath, used: list[int], n_needed: int, chunk_rows: int, bad_lines: dict[int, str]
) -> Iterator[DataFrame]:
    """Data frames of the used fields of each line, indexed by the number of the line.

    Blank lines and repetitions of the header are left out. So are lines that have too many fields
    or less than ``n_needed`` (others are empty), or that contain the header beside other text:
    ``bad_lines`` receives their numbers, with what they contain.
    """
    import pandas
    from pandas.io.common import get_handle

    with get_handle(path, "rb", compression="infer", is_text=False) as handles:
        file, first = handles.handle, 2
        header = _content(next(file))
        names = header.split(b"\t")
        ends_like_header = b"\t" + b"\t".join(names[-2:])
        while lines := list(islice(file, chunk_rows)):
            good: dict[int, bytes] = {}
            for number, line in enumerate(map(_content, lines), first):
                n_fields = line.count(b"\t") + 1
                if not line.strip() or line == header:
                    continue
                if line.endswith(ends_like_header) or line.split(b"\t", 1)[0] in names:
                    bad_lines[number] = "names of columns"
                elif n_needed <= n_fields <= len(names):
                    good[number] = line
                else:
                    bad_lines[number] = plural(n_fields, "field")
            first += len(lines)
            if good:
                content = BytesIO(b"\n".join([header, *good.values()]))
                frame = pandas.read_csv(content, usecols=used, **OPTIONS)
                frame.index = list(good)
                yield frame


def _content(line: bytes) -> bytes:
    return line.rstrip(b"\r\n")


def report_bad_lines(path: FilePath, n_columns: int, bad_lines: dict[int, str], skip: bool) -> None:
    """Warn of bad lines that were skipped, or raise."""
    if not bad_lines:
        return
    listed = ", ".join(
        f"line {number:,} ({what})" for number, what in islice(bad_lines.items(), _MOST_LISTED)
    )
    more = ", ..." if len(bad_lines) > _MOST_LISTED else ""
    message = (
        f"Expected {n_columns} fields in each line of {path}, got {plural(len(bad_lines), 'line')} "
        f"with others: {listed}{more}. "
    )
    if not skip:
        raise ValueError(
            f"{message}Correct them (a tab or a line break in a comment, or two files glued "
            "together?), or leave them out by on_bad_lines='skip'."
        )
    warn(f"{message}They were skipped.", UserWarning)
