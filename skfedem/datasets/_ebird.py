"""Reader of eBird Basic Dataset files: clients' counts by site and month."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

from .._optional import check_installed
from .._parameters import check_choice, check_counts, check_switch
from .._random import random_numbers
from .._typing import FilePath, FloatArray, IntArray, Seed
from .._warnings import warn
from ._ebird_files import CELL, EBirdFiles, Periods, one_per_event, one_per_group

if TYPE_CHECKING:
    from pandas import Period, Series


def read_ebird(
    ebd_path: FilePath,
    sampling_path: FilePath | None = None,
    *,
    species: str | None = None,
    values: Literal["count", "presence"] = "count",
    freq: Literal["D", "W", "M", "Q", "Y"] = "M",
    by: str = "observer",
    n_clients: int | None = None,
    start: str | date | Period | None = None,
    end: str | date | Period | None = None,
    complete_only: bool = False,
    on_bad_lines: Literal["error", "skip"] = "error",
    chunk_rows: int = 100_000,
    random_state: Seed = None,
) -> Bunch:
    r"""Read files of the eBird Basic Dataset as clients' counts by site and month.

    The text files of the unpacked download [1]_ are read as they are: one row for each species on
    each checklist, with fields separated by tabs, quotes without special meaning, compressed
    (``.gz``) or not. They are read in chunks. Memory grows with the number of checklists that are
    kept: those with the species and, with a sampling event file, complete ones without it.

    The files are available from https://ebird.org/data/download; the terms of use forbid sharing
    them. Requires pandas (``pip install pandas``).

    Parameters
    ----------
    ebd_path : str or path-like
        File of observations ("EBD") with the columns ``COMMON NAME``, ``SCIENTIFIC NAME``,
        ``OBSERVATION COUNT``, ``LOCALITY ID``, ``OBSERVATION DATE``, ``GROUP IDENTIFIER``,
        ``SAMPLING EVENT IDENTIFIER`` and the column of `by`, and with `complete_only` also ``ALL
        SPECIES REPORTED``; in any order, and possibly others. Repeated rows count once if the file
        has the column ``GLOBAL UNIQUE IDENTIFIER``, as eBird's files do.
    sampling_path : str or path-like, default=None
        File of the sampling events that belong to `ebd_path`, with one row for each checklist. A
        complete checklist (``ALL SPECIES REPORTED`` is 1) without the species is an observed zero.
        Without this file, the only zeros are counts of 0 among the observations, which are rare: a
        cell in which nobody reported the species is then missing. Both files must have the same
        region, dates, release and filters: otherwise, reports that were removed from one file
        become zeros. Reports whose checklist is missing cause a warning.
    species : str, default=None
        Common or scientific name of the species; case is ignored. None requires a file with a
        single species.
    values : {"count", "presence"}, default="count"
        - "count": number of birds. "X" (present but not counted) is a missing value and left out;
        - "presence": 1 for a checklist with the species, counted or not; 0 for a checklist without
          it or with a count of 0.
    freq : {"D", "W", "M", "Q", "Y"}, default="M"
        Period of a column: day, week (Monday to Sunday), month, quarter or year.
    by : str, default="observer"
        What defines a client: "observer" (``OBSERVER ID``), or any column of the files, such as
        "STATE CODE" or "COUNTY". All checklists with an empty field form one client, "".
    n_clients : int, default=None
        Number of clients: the observers (or other values of `by`) are grouped at random into this
        many clients, whose numbers of observers differ by at most one. None: every observer is a
        client.
    start, end : str, date or Period, default=None
        First and last period to keep, both inclusive, for example ``start="2000-01"``; a year or
        month given as `end` is included to its last day. Strings are parsed by ``pandas.Period``,
        which reads "01/02/2020" as 2 January: write the year first. None: the period of the first
        or last observation. Every period in between is a column.
    complete_only : bool, default=False
        Whether to leave out counts from incomplete checklists. These report presence but never
        absence, so that they bias the mean upwards if complete checklists provide zeros.
    on_bad_lines : {"error", "skip"}, default="error"
        What to do about lines with too many fields, or without those that are needed, such as after
        a tab or a line break in a comment, or where two files were glued together: raise an error
        that lists them, or skip them with a warning.
    chunk_rows : int, default=100_000
        Number of rows read at a time. It affects memory and speed, not the result.
    random_state : int, RandomState instance or None, default=None
        Seed of the groups if `n_clients` is given. Pass an int for reproducible groups.

    Returns
    -------
    Bunch
        - ``clients`` : list of ndarray of shape (n_samples_i, 3), float64, the observations of each
          client, with columns site, month (or other period) and count, sorted;
        - ``shape`` : tuple, ``(n_sites, n_months)``;
        - ``sites`` : ndarray of str, shape (n_sites,), the ``LOCALITY ID`` of each site, sorted;
        - ``months`` : PeriodIndex of length n_months, consecutive;
        - ``client_ids`` : ndarray of shape (n_clients,), the observers' identifiers, sorted; with
          `n_clients` the numbers 0 to ``n_clients - 1``;
        - ``members`` : ndarray of str, the observers' identifiers, sorted;
        - ``member_clients`` : ndarray of int, the client of each member;
        - ``species`` : str, the common name;
        - ``n_zeros`` : int, number of observed zeros from complete checklists without the species;
        - ``n_missing_counts`` : int, number of checklists left out because of an "X";
        - ``bad_lines`` : dict, the numbers of the lines that were skipped in each file.

    Raises
    ------
    ImportError
        If pandas is missing.
    FileNotFoundError
        If a file does not exist.
    TypeError, ValueError
        If a parameter is out of range; if a file is truncated, has bad lines or lacks columns; if a
        field cannot
        be parsed (the error names line and checklist); if there are several species and `species`
        is None; or if no observation is left.

    See Also
    --------
    make_site_counts : Simulated observations in the same format.

    Notes
    -----
    Each checklist is one observation; several checklists of a site and month are not merged.
    Several rows of a checklist with the name of the species are subspecies or forms of it: their
    counts are added, and the sum is missing if one of them is "X". Copies of a checklist that the
    members of a group share (same ``GROUP IDENTIFIER``) count once: the copy with the lowest
    identifier is kept, among those with the species or, if none has it, among the complete ones
    [2]_.

    The coordinates of ``sites``, for a map, are in the files: ``pandas.read_csv(sampling_path,
    sep="\t", quoting=3, index_col=False, usecols=["LOCALITY ID", "LATITUDE", "LONGITUDE"])``,
    without duplicates and indexed by ``LOCALITY ID``, gives them as ``.loc[data.sites]``.

    References
    ----------
    .. [1] B. L. Sullivan et al., "eBird: a citizen-based bird observation network in the biological
       sciences", Biological Conservation 142(10), 2009, pp. 2282-2292.
    .. [2] M. Strimas-Mackey, E. Miller and W. Hochachka, "auk: eBird data extraction and processing
       in R". Its rules are the same, except that it keeps one subspecies of a shared checklist,
       compares identifiers as text, and requires complete checklists if there are zeros.

    Examples
    --------
    A file with only the columns that are needed, and two checklists of one observer:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from skfedem.datasets import read_ebird
    >>> columns = ["COMMON NAME", "SCIENTIFIC NAME", "OBSERVATION COUNT", "LOCALITY ID"]
    >>> columns += ["OBSERVATION DATE", "OBSERVER ID", "SAMPLING EVENT IDENTIFIER"]
    >>> rows = [[*columns, "GROUP IDENTIFIER"]]
    >>> rows += [["Mallard", "Anas platyrhynchos", "12", "L1", "2020-01-05", "obsr1", "S1", ""]]
    >>> rows += [["Mallard", "Anas platyrhynchos", "3", "L2", "2020-03-01", "obsr1", "S2", ""]]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "ebd.txt"
    ...     text = "".join("\t".join(row) + "\n" for row in rows)
    ...     _ = path.write_text(text, encoding="utf-8")
    ...     data = read_ebird(path)
    >>> data.clients
    [array([[ 0.,  0., 12.],
           [ 1.,  2.,  3.]])]
    >>> data.sites.tolist(), data.client_ids.tolist(), data.months.astype(str).tolist()
    (['L1', 'L2'], ['obsr1'], ['2020-01', '2020-02', '2020-03'])
    """
    check_installed("read_ebird", "pandas")
    import pandas

    ebd_path = Path(ebd_path).expanduser()
    if sampling_path is not None:
        sampling_path = Path(sampling_path).expanduser()
    check_choice("values", values, ("count", "presence"))
    check_choice("freq", freq, ("D", "W", "M", "Q", "Y"))
    check_choice("on_bad_lines", on_bad_lines, ("error", "skip"))
    for name, text in dict(species=species or "", by=by).items():
        if not isinstance(text, str):
            raise TypeError(f"Expected {name} to be a string, got {text!r}. Give one name.")
    check_switch("complete_only", complete_only)
    check_counts(chunk_rows=chunk_rows)
    if n_clients is not None:
        check_counts(n_clients=n_clients)
    random_numbers(random_state)
    member_column = "OBSERVER ID" if by == "observer" else by
    periods, skip = _periods(start, end, freq), on_bad_lines == "skip"
    files = EBirdFiles(member_column, periods, int(chunk_rows), skip)
    if sampling_path is not None:
        files.check_sampling(sampling_path)
    found, common_name = files.reports(ebd_path, species, complete_only)
    # All reports, before any are left out: none of these checklists is a zero.
    reported = pandas.Index(pandas.concat([found["event"], found["group"]]).unique())
    reported = reported[reported != ""]
    found = one_per_group(one_per_event(found[found["complete"]]))
    if values == "presence":
        found["value"] = ((found["value"] > 0) | found["uncounted"]).astype(float)
        found["uncounted"] = False
    counted = found[~found["uncounted"]]
    cells = counted[CELL].to_numpy(dtype=np.float64)
    n_zeros = 0
    if sampling_path is not None:
        absences, listed = files.absences(sampling_path, reported)
        _check_listed(found["event"].isin(listed), common_name, sampling_path)
        n_zeros = len(absences)
        cells = np.concatenate([cells, absences])
    if not len(cells):
        raise ValueError(
            f"Expected observations of {common_name}, got none. Check start, end and "
            "complete_only; use values='presence' if all counts are 'X'."
        )
    return Bunch(
        **_federate(files, cells, n_clients, random_state),
        species=common_name,
        n_zeros=n_zeros,
        n_missing_counts=len(found) - len(counted),
        bad_lines=files.bad_lines,
    )


def _check_listed(is_listed: Series, common_name: str, sampling_path: FilePath) -> None:
    """Warn of reports whose checklists are missing in the sampling event file."""
    if not is_listed.all():
        warn(
            f"{(~is_listed).sum():,} of {len(is_listed):,} checklists with {common_name} are not "
            f"in {sampling_path}: zeros of such visits are missing, so that the mean is too large. "
            "Give files of the same region, dates and release, and filter both in the same way.",
            UserWarning,
        )


def _periods(
    start: str | date | Period | None, end: str | date | Period | None, freq: str
) -> Periods:
    first = -np.inf if start is None else _ordinal("start", start, "start_time", freq)
    last = np.inf if end is None else _ordinal("end", end, "end_time", freq)
    if first > last:
        raise ValueError(f"Expected start <= end, got start={start!r} and end={end!r}. Swap them.")
    return Periods(freq, first, last)


def _ordinal(
    name: str, value: str | date | Period, moment: Literal["start_time", "end_time"], freq: str
) -> int:
    """Number of the period with the start time or end time of a date, a month, a year, ..."""
    import pandas

    try:
        if not isinstance(value, str | date | pandas.Period):
            raise TypeError(f"{type(value).__name__} is no date")
        # A year or month is a period itself, whose end counts: the end "2020" is 31 December.
        period = pandas.Period(value, freq="D" if isinstance(value, date) else None)
        instant = getattr(period, moment)
        return pandas.Period(instant, freq=freq).ordinal
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"Expected {name} to be a date such as '2000-01', got {value!r}. Give a string, a date "
            "or a Period."
        ) from error


def _federate(
    files: EBirdFiles, cells: FloatArray, n_clients: int | None, random_state: Seed
) -> dict[str, Any]:
    """Triplets of the clients, and the labels of their sites, periods and members."""
    import pandas

    sites, site_labels = _relabel(cells[:, 0], files.sites.labels())
    members, member_labels = _relabel(cells[:, 2], files.members.labels())
    freq, first, last = files.periods
    first = int(cells[:, 1].min()) if np.isinf(first) else first
    last = int(cells[:, 1].max()) if np.isinf(last) else last
    client_ids: NDArray[Any] = member_labels
    member_clients = np.arange(len(member_labels))
    if n_clients is not None:
        if n_clients > len(member_labels):
            raise ValueError(
                f"Expected n_clients of at most {len(member_labels)}, the number of different "
                f"entries in {files.member_column!r}, got {n_clients}. Lower n_clients."
            )
        client_ids = np.arange(n_clients)
        member_clients = random_numbers(random_state).permutation(member_clients % n_clients)
    triplets = np.column_stack([sites, cells[:, 1] - first, cells[:, 3]])
    owners = member_clients[members]
    order = np.lexsort((*triplets.T[::-1], owners))
    ends = np.cumsum(np.bincount(owners, minlength=len(client_ids)))[:-1]
    return dict(
        clients=np.split(triplets[order], ends),
        shape=(len(site_labels), last - first + 1),
        sites=site_labels,
        months=pandas.PeriodIndex.from_ordinals(np.arange(first, last + 1), freq=freq),
        client_ids=client_ids,
        members=member_labels,
        member_clients=member_clients,
    )


def _relabel(numbers: FloatArray, labels: NDArray[np.str_]) -> tuple[IntArray, NDArray[np.str_]]:
    """Renumber the labels that occur in sorted order; return the new numbers and these labels."""
    numbers = numbers.astype(np.int64)
    used = np.unique(numbers)
    used = used[np.argsort(labels[used])]
    places = np.empty(len(labels), dtype=np.int64)
    places[used] = np.arange(len(used))
    return places[numbers], labels[used]
