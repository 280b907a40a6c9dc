"""Chunked reading of the two files of the eBird Basic Dataset.

pandas is optional: functions import it, after ``read_ebird`` has checked that it is installed.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._error_messages import error_context
from .._typing import FilePath, FloatArray, IntArray
from ._ebird_lines import OPTIONS, read_lines, report_bad_lines

if TYPE_CHECKING:
    from pandas import DataFrame, Index, Series

_EVENT = "SAMPLING EVENT IDENTIFIER"
_GROUP = "GROUP IDENTIFIER"
_SITE = "LOCALITY ID"
_DATE = "OBSERVATION DATE"
_COMPLETE = "ALL SPECIES REPORTED"
_COUNT = "OBSERVATION COUNT"
_ROW = "GLOBAL UNIQUE IDENTIFIER"
_SPECIES = ("COMMON NAME", "SCIENTIFIC NAME")
CELL = ["site", "period", "member", "value"]
_MAX_NAMES = 5
# Extensions that pandas decompresses.
_COMPRESSED = (".gz", ".bz2", ".zip", ".xz", ".zst", ".tar")
# Number of bytes at the end of a file in which its last line is looked for.
_TAIL = 2**16


class _Numbers:
    """Labels numbered in order of appearance: rows then store numbers instead of text."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, labels: Series) -> IntArray:
        import pandas

        codes, unique = pandas.factorize(labels.to_numpy(dtype=object))
        numbers = [self._numbers.setdefault(_text(label), len(self._numbers)) for label in unique]
        return np.array(numbers, dtype=np.int64)[codes]

    def labels(self) -> NDArray[np.str_]:
        return np.array(list(self._numbers), dtype=str)


class Periods(NamedTuple):
    """Periods that are kept.

    ``first`` and ``last`` are the ordinals of pandas's periods, or infinite for no limit.
    """

    freq: str
    first: float
    last: float


class EBirdFiles:
    """Reader of both files, with the same numbers of sites and members in both.

    Parameters
    ----------
    member_column : str
        The column whose values define the clients, or the members of clients.
    periods : Periods
    chunk_rows : int
    skip_bad_lines : bool
    """

    def __init__(
        self, member_column: str, periods: Periods, chunk_rows: int, skip_bad_lines: bool
    ) -> None:
        self.member_column = _text(member_column)
        self.periods = periods
        self.chunk_rows = chunk_rows
        self.skip_bad_lines = skip_bad_lines
        self.bad_lines: dict[str, IntArray] = {}
        self.sites = _Numbers()
        self.members = _Numbers()

    def check_sampling(self, path: FilePath) -> None:
        """Raise if these are no sampling events, before hours are spent on reading reports."""
        names, _ = self._columns(path, [_COMPLETE])
        if _COUNT in names:
            raise ValueError(
                f"Expected checklists, one a row, in {path}, got the column {_COUNT!r}: these are "
                "reports of species. Give the file of sampling events that comes with them."
            )

    def reports(
        self, path: FilePath, species: str | None, complete_only: bool
    ) -> tuple[DataFrame, str]:
        """Rows with the species within the periods, and its common name."""
        import pandas

        flag = [_COMPLETE] if complete_only else []
        names: dict[str, str] = {}
        parts: list[Any] = []
        common_name = ""
        for frame in self._chunks(path, [*_SPECIES, _COUNT, *flag]):
            _add_names(names, frame)
            if species is None and len(names) > 1:
                raise ValueError(
                    f"Expected one species in {path} for species=None, got several: "
                    f"{_first_names(names)}. Pass a name of one of them as species."
                )
            if species is not None:
                frame = frame[_is_species(frame, species)]
            if not len(frame):
                continue
            common_name = common_name or _text(frame["COMMON NAME"].iloc[0])
            frame, part = self._checklists(frame, path)
            part["value"], part["uncounted"] = _counts(frame, path)
            part["complete"] = _flags(frame, path) if complete_only else True
            if _ROW in frame:
                part["row"] = _hashes(frame[_ROW])
                part["named"] = frame[_ROW] != ""
            if len(part) or not parts:
                parts.append(part)
        if not parts:
            raise ValueError(
                f"Expected rows with {species or 'a species'!r} in {path}, got none. Species "
                f"there: {_first_names(names)}."
            )
        found = pandas.concat(parts, ignore_index=True)
        if "row" in found:
            again = found.duplicated("row") & found["named"]
            found = found[~again].drop(columns=["row", "named"])
        return found, common_name

    def absences(self, path: FilePath, reported: Index) -> tuple[FloatArray, Index]:
        """Cells (site, period, member, 0) of complete checklists that are not in `reported`.

        Also returns the identifiers in `reported`, of checklists and groups, that are in the file.
        """
        import pandas

        cells, events, shared = [np.empty((0, len(CELL)))], [np.empty(0, dtype=np.uint64)], []
        is_listed = np.full(len(reported), False)
        for frame in self._chunks(path, [_COMPLETE]):
            places = np.array([reported.get_indexer(frame[column]) for column in (_EVENT, _GROUP)])
            is_listed[places[places >= 0]] = True
            is_absence = _flags(frame, path) & (places < 0).all(axis=0)
            _, part = self._checklists(frame[is_absence], path)
            part["value"] = 0
            in_group = part["group"] != ""
            alone = part[~in_group]
            # Empty parts are dropped: those of thousands of chunks would fill the memory.
            if len(alone):
                cells.append(alone[CELL].to_numpy(dtype=np.float64))
                events.append(_hashes(alone["event"]))
            if in_group.any():
                shared.append(part[in_group])
        _, once = np.unique(np.concatenate(events), return_index=True)
        absences = np.concatenate(cells)[once]
        if shared:
            copies = one_per_group(pandas.concat(shared, ignore_index=True))
            absences = np.concatenate([absences, copies[CELL].to_numpy(dtype=np.float64)])
        return absences, reported[is_listed]

    def _columns(self, path: FilePath, more_columns: list[str]) -> tuple[list[str], list[int]]:
        """Names of all columns, and positions of those to read."""
        names = _header(path)
        columns = [_EVENT, _GROUP, _SITE, _DATE, self.member_column, *more_columns]
        missing = [name for name in dict.fromkeys(columns) if name not in names]
        if missing:
            raise ValueError(
                f"Expected {', '.join(map(repr, missing))} among the columns of {path}, got "
                f"{', '.join(map(repr, names))}. Give a text file as eBird ships it, with tabs, "
                "and choose `by` from its columns."
            )
        return names, sorted({names.index(name) for name in [*columns, _ROW] if name in names})

    def _chunks(self, path: FilePath, more_columns: list[str]) -> Iterator[DataFrame]:
        """Data frames of the columns to read, as text, indexed by the line in the file."""
        names, used = self._columns(path, more_columns)
        _check_end(path, len(names))
        n_needed = 1 + max(map(names.index, [_EVENT, _SITE, _DATE, *more_columns]))
        bad_lines: dict[int, str] = {}
        with _reading(path):
            for frame in read_lines(path, used, n_needed, self.chunk_rows, bad_lines):
                if bad_lines and not self.skip_bad_lines:
                    continue  # the error will list those of the whole file
                frame.columns = [names[k] for k in used]
                # R writes NA for an empty field, which would look like a group of all unshared
                # checklists.
                frame[_GROUP] = frame[_GROUP].replace("NA", "")
                yield frame
        self.bad_lines[str(path)] = np.array(list(bad_lines), dtype=np.int64)
        report_bad_lines(path, len(names), bad_lines, self.skip_bad_lines)

    def _checklists(self, frame: DataFrame, path: FilePath) -> tuple[DataFrame, DataFrame]:
        """Rows within the periods, unchanged and with numbers instead of text."""
        import pandas

        for column in (_SITE, _EVENT):
            _check_field(frame, frame[column] != "", column, "an identifier", path)
        dates = pandas.to_datetime(frame[_DATE], format="%Y-%m-%d", errors="coerce")
        _check_field(frame, dates.notna(), _DATE, "a date such as 2020-05-31", path)
        freq, first, last = self.periods
        periods = pandas.PeriodIndex(dates, freq=freq).astype("int64").to_numpy()
        inside = (first <= periods) & (periods <= last)
        frame = frame[inside]
        part = dict(
            event=frame[_EVENT],
            group=frame[_GROUP],
            site=self.sites.of(frame[_SITE]),
            period=periods[inside],
            member=self.members.of(frame[self.member_column]),
        )
        return frame, pandas.DataFrame(part)


def _reading(path: FilePath) -> AbstractContextManager[None]:
    return error_context(f"{path} is not a complete text file, plain or compressed")


def _header(path: FilePath) -> list[str]:
    """Names of the columns of a file."""
    import pandas

    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(
            f"Expected a regular file, as it is read more than once, got {path}. Give the path of "
            "a file ebd_....txt."
        )
    with _reading(path):
        header = pandas.read_csv(path, nrows=0, skip_blank_lines=False, **OPTIONS).columns
    return [_text(name).strip("\ufeff ") for name in header]


def _check_end(path: FilePath, n_columns: int) -> None:
    """Raise if the last line of a plain file is cut off; compressed files fail when read."""
    if Path(path).suffix.lower() in _COMPRESSED or not os.path.isfile(path):
        return
    with open(path, "rb") as file:
        file.seek(-min(_TAIL, os.path.getsize(path)), os.SEEK_END)
        *others, last = file.read().split(b"\n")
    if not others:  # longer than the tail, or the header
        return
    n_fields = len(last.split(b"\t"))
    if last.strip() and n_fields < n_columns:
        raise ValueError(
            f"Expected {n_columns} fields or a line break at the end of {path}, got {n_fields} "
            "fields: the file is cut off. Download it again."
        )


def _text(label: str) -> str:
    """Text of a field that was read one character for each byte, in Unicode's composed form."""
    if label.isascii():
        return label
    with suppress(UnicodeError):  # it is Latin-1, or was not read from a file
        label = label.encode("latin-1").decode("utf-8")
    return unicodedata.normalize("NFC", label)


def _hashes(texts: Series) -> NDArray[np.uint64]:
    """Hashes of 64 bits: with ten million texts, two are alike in one of 400,000 files."""
    import pandas

    return pandas.util.hash_array(texts.to_numpy(dtype=object))


def _check_field(
    frame: DataFrame, valid: Series, column: str, expected: str, path: FilePath
) -> None:
    if not valid.all():
        row = frame[~valid].iloc[0]
        raise ValueError(
            f"Expected {expected} in column {column!r}, got {_text(row[column])!r} in line "
            f"{row.name} of {path} (checklist {_text(row[_EVENT])!r}). Correct it there, or "
            "download the file again."
        )


def _flags(frame: DataFrame, path: FilePath) -> Series:
    _check_field(frame, frame[_COMPLETE].isin(["0", "1"]), _COMPLETE, "0 or 1", path)
    return frame[_COMPLETE] == "1"


def _counts(frame: DataFrame, path: FilePath) -> tuple[Series, Series]:
    """Counts, with 0 in place of "X", and a mask of the "X"."""
    counts = frame[_COUNT]
    uncounted = counts.isin(["X", "x"])
    valid = uncounted | counts.str.fullmatch("[0-9]{1,15}")
    _check_field(frame, valid, _COUNT, "a whole number below 1e15 or 'X'", path)
    return counts.where(~uncounted, "0").astype(np.float64), uncounted


def _add_names(names: dict[str, str], frame: DataFrame) -> None:
    """Add some species of the file, by scientific name."""
    if len(names) <= _MAX_NAMES:
        pairs = frame[list(_SPECIES)].drop_duplicates("SCIENTIFIC NAME").head(2 * _MAX_NAMES)
        for common, scientific in pairs.itertuples(index=False):
            names.setdefault(scientific, f"{_text(common)} ({_text(scientific)})")


def _first_names(names: dict[str, str]) -> str:
    first = list(names.values())[:_MAX_NAMES]
    return ", ".join(first + ["..."] * (len(names) > _MAX_NAMES)) or "none"


def _is_species(frame: DataFrame, species: str) -> Series:
    wanted = _text(species).strip().casefold()
    names = [name for column in _SPECIES for name in frame[column].unique()]
    spellings = [name for name in names if _text(name).strip().casefold() == wanted]
    return frame[[*_SPECIES]].isin(spellings).any(axis=1)


def one_per_event(rows: DataFrame) -> DataFrame:
    """Add up the rows of subspecies and forms of the species on each checklist."""
    columns = {name: "first" for name in rows.columns if name != "event"}
    columns.update(value="sum", uncounted="max")
    return rows.groupby("event", sort=False, as_index=False).agg(columns)


def one_per_group(checklists: DataFrame) -> DataFrame:
    """Keep all unshared checklists and, of each shared one, the copy with the lowest identifier."""
    import pandas

    in_group = checklists["group"] != ""
    shared = checklists[in_group]
    # Identifiers are a letter and a number: a shorter one is lower.
    shared = shared.assign(length=shared["event"].str.len()).sort_values(["length", "event"])
    shared = shared.drop_duplicates("group").drop(columns="length")
    return pandas.concat([checklists[~in_group], shared], ignore_index=True)
