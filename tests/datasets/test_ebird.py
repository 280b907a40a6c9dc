"""Files of the eBird Basic Dataset may not be passed on: these are written here, in its format."""

import gzip
import itertools
import lzma
import os
import sys
import tarfile
import unicodedata
import zipfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from skfedem.datasets import make_site_counts, read_ebird
from watched import peak_memory

PLACE = (
    "COUNTRY|COUNTRY CODE|STATE|STATE CODE|COUNTY|COUNTY CODE|IBA CODE|BCR CODE|USFWS CODE|"
    "ATLAS BLOCK|LOCALITY|LOCALITY ID|LOCALITY TYPE|LATITUDE|LONGITUDE|OBSERVATION DATE|"
    "TIME OBSERVATIONS STARTED|OBSERVER ID|OBSERVER ORCID ID|SAMPLING EVENT IDENTIFIER|"
    "OBSERVATION TYPE|PROTOCOL NAME|PROTOCOL CODE|PROJECT NAMES|PROJECT IDENTIFIERS|"
    "DURATION MINUTES|EFFORT DISTANCE KM|EFFORT AREA HA|NUMBER OBSERVERS|ALL SPECIES REPORTED|"
    "GROUP IDENTIFIER"
)
EBD_COLUMNS = (
    "GLOBAL UNIQUE IDENTIFIER|LAST EDITED DATE|TAXONOMIC ORDER|CATEGORY|TAXON CONCEPT ID|"
    "COMMON NAME|SCIENTIFIC NAME|SUBSPECIES COMMON NAME|SUBSPECIES SCIENTIFIC NAME|EXOTIC CODE|"
    f"OBSERVATION COUNT|BREEDING CODE|BREEDING CATEGORY|BEHAVIOR CODE|AGE/SEX|{PLACE}|HAS MEDIA|"
    "APPROVED|REVIEWED|REASON|CHECKLIST COMMENTS|SPECIES COMMENTS"
).split("|")
SAMPLING_COLUMNS = f"LAST EDITED DATE|{PLACE}|CHECKLIST COMMENTS".split("|")
ROW_NUMBERS = itertools.count()
SCIENTIFIC = {"Mallard": "Anas platyrhynchos", "Common Buzzard": "Buteo buteo", "Smew": "Mergus"}


def checklist(
    event, site="L1", date="2020-01-05", observer="obsr1", group="", complete="1", **more
):
    """Fields of one checklist; `more` has those of a species seen and any others."""
    fields = {
        "SAMPLING EVENT IDENTIFIER": event,
        "LOCALITY ID": site,
        "OBSERVATION DATE": date,
        "OBSERVER ID": observer,
        "GROUP IDENTIFIER": group,
        "ALL SPECIES REPORTED": complete,
        "LAST EDITED DATE": "2021-03-04 05:06:07.8",
        "COUNTRY CODE": "FR",
        "STATE": "Île-de-France",
        "LOCALITY": '"Étang du Nord',
        "CHECKLIST COMMENTS": "one \" quote, 'another, #1",
    }
    return fields | more


def seen(event, count="1", name="Mallard", **more):
    species = {
        "GLOBAL UNIQUE IDENTIFIER": f"URN:CornellLabOfOrnithology:EBIRD:OBS{next(ROW_NUMBERS)}",
        "CATEGORY": "species",
        "COMMON NAME": name,
        "SCIENTIFIC NAME": SCIENTIFIC[name],
        "OBSERVATION COUNT": count,
    }
    return checklist(event, **(species | more))


def as_text(rows, columns, end="\n"):
    lines = [columns, *([row.get(column, "") for column in columns] for row in rows)]
    return "".join("\t".join(fields) + end for fields in lines)


def write_ebd(folder, rows, name="ebd.txt", **options):
    path = folder / name
    path.write_bytes(as_text(rows, EBD_COLUMNS, **options).encode())
    return path


def write_sampling(folder, rows, name="sampling.txt", **options):
    path = folder / name
    path.write_bytes(as_text(rows, SAMPLING_COLUMNS, **options).encode())
    return path


def labelled(data):
    """Every observation with its labels: (client, site, period, value)."""
    return sorted(
        (str(client), str(data.sites[int(site)]), str(data.months[int(month)]), value)
        for client, cells in zip(data.client_ids, data.clients, strict=True)
        for site, month, value in cells.tolist()
    )


def test_observations_are_triplets_of_site_month_count(tmp_path):
    ebd = write_ebd(
        tmp_path,
        [
            seen("S3", "7", observer="obsr2", site="L9", date="2020-04-30"),
            seen("S1", "12", site="L30"),
            seen("S2", "3", site="L30", date="2020-01-31"),
            seen("S4", "1", site="L9", date="2020-02-01"),
        ],
    )
    data = read_ebird(ebd)
    assert_array_equal(data.sites, ["L30", "L9"])
    assert list(data.months.astype(str)) == ["2020-01", "2020-02", "2020-03", "2020-04"]
    assert_array_equal(data.client_ids, ["obsr1", "obsr2"])
    assert data.shape == (2, 4)
    assert_array_equal(data.clients[0], [[0, 0, 3], [0, 0, 12], [1, 1, 1]])
    assert_array_equal(data.clients[1], [[1, 3, 7]])
    assert all(cells.dtype == np.float64 for cells in data.clients)
    assert (data.species, data.n_zeros, data.n_missing_counts) == ("Mallard", 0, 0)
    assert_array_equal(data.members, data.client_ids)
    assert_array_equal(data.member_clients, [0, 1])


def test_complete_checklists_without_the_species_are_zeros(tmp_path):
    ebd = write_ebd(
        tmp_path,
        [
            seen("S1", "5"),
            seen("S2", "4", name="Smew"),
            seen("S4", "X", site="L4"),
            seen("S5", "2", complete="0"),
        ],
    )
    sampling = write_sampling(
        tmp_path,
        [
            checklist("S1"),
            checklist("S2", site="L2"),
            checklist("S3", site="L3", complete="0"),
            checklist("S4", site="L4"),
            checklist("S5", complete="0"),
            checklist("S6", site="L6", observer="obsr2", date="2020-02-29"),
        ],
    )
    data = read_ebird(ebd, sampling, species="Mallard")
    assert labelled(data) == [
        ("obsr1", "L1", "2020-01", 2.0),
        ("obsr1", "L1", "2020-01", 5.0),
        ("obsr1", "L2", "2020-01", 0.0),
        ("obsr2", "L6", "2020-02", 0.0),
    ]
    assert (data.n_zeros, data.n_missing_counts) == (2, 1)

    presence = read_ebird(ebd, sampling, species="Mallard", values="presence")
    assert labelled(presence) == [
        ("obsr1", "L1", "2020-01", 1.0),
        ("obsr1", "L1", "2020-01", 1.0),
        ("obsr1", "L2", "2020-01", 0.0),
        ("obsr1", "L4", "2020-01", 1.0),
        ("obsr2", "L6", "2020-02", 0.0),
    ]
    assert (presence.n_zeros, presence.n_missing_counts) == (2, 0)

    complete = read_ebird(ebd, sampling, species="Mallard", complete_only=True)
    assert labelled(complete) == [
        ("obsr1", "L1", "2020-01", 5.0),
        ("obsr1", "L2", "2020-01", 0.0),
        ("obsr2", "L6", "2020-02", 0.0),
    ]


def test_zeros_alone_are_observations(tmp_path):
    ebd = write_ebd(tmp_path, [seen("S1", "X")])
    with pytest.raises(ValueError, match="of Mallard, got none. Check start, end"):
        read_ebird(ebd)
    sampling = write_sampling(tmp_path, [checklist("S1"), checklist("S2", group="G1")])
    assert labelled(read_ebird(ebd, sampling)) == [("obsr1", "L1", "2020-01", 0.0)]
    ebd = write_ebd(tmp_path, [seen("S1", "3", complete="0")])
    data = read_ebird(ebd, sampling, complete_only=True)
    assert labelled(data) == [("obsr1", "L1", "2020-01", 0.0)]
    assert data.n_missing_counts == 0


def test_a_sampling_file_without_rows_adds_nothing(tmp_path):
    ebd = write_ebd(tmp_path, [seen("S1", "3")])
    with pytest.warns(UserWarning, match="1 of 1 checklists with Mallard are not in"):
        data = read_ebird(ebd, write_sampling(tmp_path, []))
    assert labelled(data) == [("obsr1", "L1", "2020-01", 3.0)]


@pytest.mark.parametrize("chunk_rows", [1, 100])
def test_reports_without_checklists_warn(tmp_path, chunk_rows):
    rows = [
        seen("S1", "3", complete="0"),
        seen("S2", "4"),
        seen("S3", "5", group="G1"),
        seen("S4", "5", group="G1"),  # left out, as a copy of S3
        seen("S5", "X"),
        seen("S6", "6", date="2021-01-05"),
    ]
    ebd = write_ebd(tmp_path, rows)
    options = dict(end="2020", chunk_rows=chunk_rows)
    lists = {f"S{k}": checklist(f"S{k}") for k in range(1, 10)} | {"S1": rows[0]}
    read_ebird(ebd, write_sampling(tmp_path, lists.values()), **options)
    short = write_sampling(tmp_path, [lists[event] for event in ("S3", "S8", "S9")])
    with pytest.warns(UserWarning, match="3 of 4 checklists with Mallard .* filter both in the"):
        assert read_ebird(ebd, short, **options).n_zeros == 2
    with pytest.warns(UserWarning, match="2 of 3 checklists"):  # S1 is left out
        read_ebird(ebd, short, complete_only=True, **options)


@pytest.mark.parametrize("chunk_rows", [1, 100])
def test_shared_checklists_count_once(tmp_path, chunk_rows):
    ebd = write_ebd(
        tmp_path,
        [
            seen("S10", "8", observer="obsr2", group="G1"),
            seen("S9", "7", observer="obsr1", group="G1"),
            seen("S11", "8", observer="obsr3", group="G1"),
            seen("S21", "4", observer="obsr3", group="G2"),  # the copies of S20 and S22 lost it
            seen("S30", "1", observer="obsr1"),
            seen("S31", "1", observer="obsr1"),
        ],
    )
    sampling = write_sampling(
        tmp_path,
        [
            checklist(event, observer=observer, group=group)
            for event, observer, group in [
                ("S10", "obsr2", "G1"),
                ("S9", "obsr1", "G1"),
                ("S11", "obsr3", "G1"),
                ("S20", "obsr2", "G2"),
                ("S21", "obsr3", "G2"),
                ("S22", "obsr1", "G2"),
                ("S30", "obsr1", ""),
                ("S31", "obsr1", ""),
                ("S100", "obsr1", "G3"),
                ("S99", "obsr2", "G3"),
                ("S40", "obsr3", ""),
            ]
        ],
    )
    data = read_ebird(ebd, sampling, chunk_rows=chunk_rows)
    assert labelled(data) == [
        ("obsr1", "L1", "2020-01", 1.0),
        ("obsr1", "L1", "2020-01", 1.0),
        ("obsr1", "L1", "2020-01", 7.0),
        ("obsr2", "L1", "2020-01", 0.0),
        ("obsr3", "L1", "2020-01", 0.0),
        ("obsr3", "L1", "2020-01", 4.0),
    ]
    assert data.n_zeros == 2


def test_groups_written_as_na_by_r(tmp_path):
    # readr::write_tsv writes NA for an empty field: not a group of which one checklist counts.
    ebd = write_ebd(tmp_path, [seen("S1", "4", group="NA"), seen("S2", "5", group="NA")])
    visits = [checklist(f"S{i}", group="NA") for i in range(1, 6)]
    data = read_ebird(ebd, write_sampling(tmp_path, visits))
    assert_array_equal(data.clients[0][:, 2], [0, 0, 0, 4, 5])


def test_a_checklist_that_joined_a_group_later_is_no_zero(tmp_path):
    ebd = write_ebd(tmp_path, [seen("S1", "2")])
    sampling = write_sampling(tmp_path, [checklist("S1", group="G1")])
    assert read_ebird(ebd, sampling).n_zeros == 0


@pytest.mark.parametrize("chunk_rows", [1, 100])
def test_subspecies_of_one_checklist_add_up(tmp_path, chunk_rows):
    rows = [
        seen("S1", "5"),
        seen("S2", "x"),
        seen("S1", "2", CATEGORY="issf"),
        seen("S2", "3", CATEGORY="issf"),
        seen("S3", "0"),
    ]
    ebd = write_ebd(tmp_path, rows)
    data = read_ebird(ebd, chunk_rows=chunk_rows)
    assert_array_equal(data.clients[0][:, 2], [0, 7])
    assert data.n_missing_counts == 1
    data = read_ebird(ebd, values="presence", chunk_rows=chunk_rows)
    assert_array_equal(data.clients[0][:, 2], [0, 1, 1])


def test_the_common_name_is_that_of_the_first_row(tmp_path):
    domestic = {"COMMON NAME": "Mallard (Domestic type)"}
    rows = [seen("S0", "5"), *(seen(f"S{k}", "5", **domestic) for k in range(1, 20))]
    ebd = write_ebd(tmp_path, rows)
    assert read_ebird(ebd, chunk_rows=5).species == "Mallard"
    ebd = write_ebd(tmp_path, [*rows, seen("S20", "4", name="Common Buzzard")])
    with pytest.raises(ValueError, match="got several: Mallard .*, Common Buzzard"):
        read_ebird(ebd)


def test_species_by_either_name(tmp_path):
    ebd = write_ebd(tmp_path, [seen("S1", "5"), seen("S2", "4", name="Common Buzzard")])
    for species in ("Common Buzzard", "common buzzard ", "Buteo buteo", "BUTEO BUTEO"):
        data = read_ebird(ebd, species=species)
        assert_array_equal(data.clients[0][:, 2], [4])
        assert data.species == "Common Buzzard"
    spaced = write_ebd(tmp_path, [seen("S1", "6", **{"COMMON NAME": " Mallard "})], "spaced.txt")
    assert_array_equal(read_ebird(spaced, species="Mallard").clients[0][:, 2], [6])
    several = r"got several: Mallard \(Anas platyrhynchos\), Common Buzzard \(Buteo buteo\)"
    for chunk_rows in (1, 100):
        with pytest.raises(ValueError, match=several):
            read_ebird(ebd, chunk_rows=chunk_rows)
    with pytest.raises(ValueError, match="rows with 'Buzzard' in .*ebd.txt, got none. .*Mallard"):
        read_ebird(ebd, species="Buzzard")
    with pytest.raises(ValueError, match=r"rows with 'a species' in .*ebd\.txt, got none"):
        read_ebird(write_ebd(tmp_path, []))


def test_long_lists_of_species_are_shortened(tmp_path):
    rows = [
        seen("S1") | {"COMMON NAME": f"bird {k}", "SCIENTIFIC NAME": f"Avis {k}"} for k in range(20)
    ]
    for chunk_rows in (1, 100):
        with pytest.raises(ValueError, match=r"bird 4 \(Avis 4\), \.\.\."):
            read_ebird(write_ebd(tmp_path, rows), species="Mallard", chunk_rows=chunk_rows)


@pytest.mark.parametrize(
    "freq, periods",
    [
        ("D", ["2019-12-29", "2019-12-30", "2019-12-31", "2020-01-01"]),
        ("W", ["2019-12-23/2019-12-29", "2019-12-30/2020-01-05"]),
        ("M", ["2019-12", "2020-01"]),
        ("Q", ["2019Q4", "2020Q1"]),
        ("Y", ["2019", "2020"]),
    ],
)
def test_periods_have_the_frequency(tmp_path, freq, periods):
    rows = [seen("S1", date="2019-12-29"), seen("S2", date="2020-01-01")]
    data = read_ebird(write_ebd(tmp_path, rows), freq=freq)
    assert list(data.months.astype(str)) == periods
    assert_array_equal(data.clients[0], [[0, 0, 1], [0, len(periods) - 1, 1]])


def test_start_and_end_bound_the_periods(tmp_path):
    dates = ["2019-12-31", "2020-01-01", "2020-03-31", "2020-04-01"]
    ebd = write_ebd(tmp_path, [seen(f"S{k}", date=date) for k, date in enumerate(dates)])
    sampling = write_sampling(
        tmp_path,
        [checklist(f"S{n}{k}", date=date) for k, date in enumerate(dates) for n in ("", 9)],
    )
    data = read_ebird(ebd, sampling, start="2020-01", end="2020-03")
    assert list(data.months.astype(str)) == ["2020-01", "2020-02", "2020-03"]
    assert_array_equal(data.clients[0], [[0, 0, 0], [0, 0, 1], [0, 2, 0], [0, 2, 1]])
    data = read_ebird(ebd, start="2019-01-15", end=pd.Timestamp("2020-12-24"), freq="M")
    assert data.shape == (1, 24)
    assert_array_equal(data.clients[0][:, 1], [11, 12, 14, 15])
    for freq in ("D", "M", "Q", "Y"):
        data = read_ebird(ebd, start="2020", end="2020", freq=freq)
        assert_array_equal(data.clients[0][:, 2], [1, 1, 1])
        assert data.shape == (1, {"D": 366, "M": 12, "Q": 4, "Y": 1}[freq])
    data = read_ebird(ebd, end=pd.Period("2020-01", "M"), freq="D")
    assert (str(data.months[0]), str(data.months[-1])) == ("2019-12-31", "2020-01-31")
    with pytest.raises(ValueError, match="observations of Mallard, got none. Check start, end and"):
        read_ebird(ebd, start="2021")


def test_clients_by_any_column(tmp_path):
    places = [("NA", "Erongo"), ("FR", ""), ("NA", "Kunene")]
    ebd = write_ebd(
        tmp_path,
        [
            seen(f"S{k}", str(k), **{"COUNTRY CODE": country, "COUNTY": county})
            for k, (country, county) in enumerate(places)
        ],
    )
    data = read_ebird(ebd, by="COUNTRY CODE")
    assert_array_equal(data.client_ids, ["FR", "NA"])  # Namibia is not a missing value
    assert [cells[:, 2].tolist() for cells in data.clients] == [[1], [0, 2]]
    assert_array_equal(read_ebird(ebd, by="COUNTY").client_ids, ["", "Erongo", "Kunene"])
    with pytest.raises(ValueError, match="'GROUP' among the columns of .* 'GLOBAL.* choose `by`"):
        read_ebird(ebd, by="GROUP")


def test_observers_are_grouped_at_random(tmp_path):
    rows = [seen(f"S{k}", str(k), observer=f"obsr{k % 7}") for k in range(21)]
    ebd = write_ebd(tmp_path, rows)
    data = read_ebird(ebd, n_clients=3, random_state=0)
    assert_array_equal(data.client_ids, [0, 1, 2])
    assert_array_equal(data.members, [f"obsr{k}" for k in range(7)])
    assert sorted(np.bincount(data.member_clients)) == [2, 2, 3]
    for client, cells in enumerate(data.clients):
        held = {f"obsr{int(count) % 7}" for count in cells[:, 2]}
        assert held == set(data.members[data.member_clients == client])
    assert sum(len(cells) for cells in data.clients) == 21
    again = read_ebird(ebd, n_clients=3, random_state=0, chunk_rows=2)
    assert labelled(again) == labelled(data)
    draws = {tuple(read_ebird(ebd, n_clients=3, random_state=k).member_clients) for k in range(5)}
    assert len(draws) > 1
    alone = read_ebird(ebd, n_clients=7, random_state=0)
    assert [len(cells) for cells in alone.clients] == [3] * 7
    with pytest.raises(ValueError, match="at most 7, .* 'OBSERVER ID', got 8. Lower n_clients"):
        read_ebird(ebd, n_clients=8)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\t\n"])
def test_encodings_ends_of_lines_and_compression(tmp_path, encoding, end):
    # Older files end their lines, the first one among them, with a tab.
    rows = [
        seen("S1", "3") | {"SPECIES COMMENTS": "heard"},
        seen("S2", "4", STATE="Provence-Alpes-Côte d'Azur"),
    ]
    content = as_text(rows, EBD_COLUMNS, end).encode(encoding)
    plain, zipped = tmp_path / "ebd.txt", tmp_path / "ebd.txt.gz"
    plain.write_bytes(content)
    zipped.write_bytes(gzip.compress(content))
    with tarfile.open(tmp_path / "ebd.tar", "w") as archive:
        archive.add(plain)
    for path in (plain, str(zipped), tmp_path / "ebd.tar"):
        data = read_ebird(path, by="STATE")
        assert_array_equal(data.client_ids, ["Provence-Alpes-Côte d'Azur", "Île-de-France"])
        assert [cells[:, 2].tolist() for cells in data.clients] == [[4], [3]]
    identifiers = read_ebird(plain, by="GLOBAL UNIQUE IDENTIFIER").client_ids
    assert set(identifiers) == {row["GLOBAL UNIQUE IDENTIFIER"] for row in rows}


def test_names_of_columns_may_have_spaces_around_them(tmp_path):
    ebd = write_ebd(tmp_path, [seen("S1", "3")])
    ebd.write_text(
        ebd.read_text(encoding="utf-8").replace("\tOBSERVATION COUNT\t", "\t OBSERVATION COUNT \t"),
        encoding="utf-8",
    )
    assert read_ebird(ebd).clients[0][:, 2].tolist() == [3]


def damaged(tmp_path, damage, name="ebd.txt"):
    """Five good lines of observations, of which the third, of S2, is damaged."""
    ebd = write_ebd(tmp_path, [seen(f"S{k}", str(k)) for k in range(5)])
    lines = ebd.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[3] = damage(lines[3])
    (tmp_path / name).write_text("".join(lines), encoding="utf-8")
    return tmp_path / name


@pytest.mark.parametrize("chunk_rows", [1, 2, 100])
@pytest.mark.parametrize(
    "damage, bad_lines, counts",
    [
        # A tab in the locality shifts the identifier of the locality and the date.
        (lambda line: line.replace("Étang", "Ét\tang"), {4: "53 fields"}, [0, 1, 3, 4]),
        # A line break in it, or in a comment.
        (
            lambda line: line.replace("Étang", "Ét\nang"),
            {4: "26 fields", 5: "27 fields"},
            [0, 1, 3, 4],
        ),
        (lambda line: line.replace("quote,", "quote\n"), {5: "2 fields"}, [0, 1, 2, 3, 4]),
        # A file that broke off, with another glued to its end, whose line of names may be there.
        (
            lambda line: "\t".join(line.split("\t")[:40]) + line,
            {4: "91 fields"},
            [0, 1, 3, 4],
        ),
        (lambda line: line[:9] + "\t".join(EBD_COLUMNS) + "\n", {4: "names"}, [0, 1, 3, 4]),
        # Another file with other columns.
        (
            lambda line: "\t".join(reversed(EBD_COLUMNS)) + "\n",
            {4: "names of columns"},
            [0, 1, 3, 4],
        ),
    ],
)
def test_lines_that_cannot_be_read_are_listed_or_skipped(
    tmp_path, damage, bad_lines, counts, chunk_rows
):
    ebd = damaged(tmp_path, damage)
    listed = ", ".join(rf"line {number} \({what}" + ".*" for number, what in bad_lines.items())
    message = rf"Expected 52 fields .*ebd.txt, got {len(bad_lines)} line.*: {listed}"
    with pytest.raises(ValueError, match=f"{message} leave them out by on_bad_lines='skip'"):
        read_ebird(ebd, chunk_rows=chunk_rows)
    with pytest.warns(UserWarning, match=f"{message} They were skipped"):
        data = read_ebird(ebd, chunk_rows=chunk_rows, on_bad_lines="skip")
    assert_array_equal(data.clients[0][:, 2], counts)
    assert_array_equal(data.bad_lines[str(ebd)], list(bad_lines))


def test_bad_lines_of_the_sampling_file_are_listed(tmp_path):
    ebd = write_ebd(tmp_path, [seen("S1")])
    sampling = write_sampling(tmp_path, [checklist("S1"), checklist("S2"), checklist("S3")])
    text = sampling.read_text(encoding="utf-8")
    sampling.write_text(text.replace("\tS2\t", "\t\tS2\t"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"sampling.txt, got 1 line with others: line 3 \(34"):
        read_ebird(ebd, sampling)
    with pytest.warns(UserWarning, match=r"line 3 \(34 fields\)\. They were skipped"):
        data = read_ebird(ebd, sampling, on_bad_lines="skip")
    assert data.n_zeros == 1
    assert_array_equal(data.bad_lines[str(sampling)], [3])
    assert_array_equal(data.bad_lines[str(ebd)], [])


def test_many_bad_lines_are_counted(tmp_path):
    ebd = write_ebd(tmp_path, [seen(f"S{k}") for k in range(30)])
    text = ebd.read_text(encoding="utf-8").replace("Étang", "Ét\tang")
    ebd.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"got 30 lines .*, line 21 \(53 fields\), \.\.\.\. Corr"):
        read_ebird(ebd, chunk_rows=7)


def test_trailing_empty_fields_may_be_left_out(tmp_path):
    # As by editors that strip blanks at the ends of lines.
    rows = [seen("S1", "3"), seen("S2", "4", **{"CHECKLIST COMMENTS": ""})]
    ebd = write_ebd(tmp_path, rows)
    lines = ebd.read_text(encoding="utf-8").splitlines()
    ebd.write_text("".join(line.rstrip() + "\n" for line in lines), encoding="utf-8")
    zipped = tmp_path / "ebd.txt.gz"
    zipped.write_bytes(gzip.compress(ebd.read_bytes()))
    for path in (ebd, zipped):
        assert_array_equal(read_ebird(path).clients[0][:, 2], [3, 4])


def test_messages_show_letters_with_accents(tmp_path):
    ebd = write_ebd(tmp_path, [seen("S1", "drei Höckerschwäne")])
    with pytest.raises(ValueError, match="got 'drei Höckerschwäne' in line 2"):
        read_ebird(ebd)


def test_letters_with_accents_may_be_one_character_or_two(tmp_path):
    one, two = ("Grèbe huppé", unicodedata.normalize("NFD", "Grèbe huppé"))
    rows = [
        seen(f"S{k}", str(k), STATE=state) | {"COMMON NAME": name, "SCIENTIFIC NAME": "Podiceps"}
        for k, (name, state) in enumerate([(one, one), (two, two), ("Smew", one)])
    ]
    ebd = write_ebd(tmp_path, rows)
    for species in (one, two):
        data = read_ebird(ebd, species=species, by="STATE")
        assert_array_equal(data.clients[0][:, 2], [0, 1])
        assert_array_equal(data.client_ids, [one])


def place(event):
    return dict(
        site=f"L{event % 3}",
        date=f"2020-0{1 + event % 4}-01",
        observer=f"obsr{event % 5}",
        group=f"G{event % 7}" if event % 7 < 3 else "",
        complete=str(event % 2),
    )


def read_by_hand(rows, events):
    """Read (species, count, event) and all events: one checklist after the other."""
    groups = {}
    for event in sorted(events):
        groups.setdefault(place(event)["group"] or event, []).append(event)
    observations, n_missing_counts = [], 0
    for copies in groups.values():
        counts = {
            event: [count for name, count, at in rows if name == "Mallard" and at == event]
            for event in copies
        }
        if any(counts.values()):
            kept = next(event for event in copies if counts[event])
            if "X" in counts[kept]:
                n_missing_counts += 1
                continue
            value = sum(map(int, counts[kept]))
        else:
            complete = [event for event in copies if place(event)["complete"] == "1"]
            if not complete:
                continue
            kept, value = complete[0], 0
        where = place(kept)
        observations.append((where["observer"], where["site"], where["date"][:7], float(value)))
    return sorted(observations), n_missing_counts


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["Mallard", "Smew"]),
            st.sampled_from(["0", "1", "23", "X"]),
            st.integers(1, 30),
        ),
        max_size=30,
    ),
    others=st.sets(st.integers(1, 30)),
    chunk_rows=st.integers(1, 40),
)
def test_agrees_with_reading_by_hand_for_any_chunks(tmp_path_factory, rows, others, chunk_rows):
    folder = tmp_path_factory.getbasetemp()
    rows = [*rows, ("Mallard", "2", 31)]
    events = others | {event for _, _, event in rows}
    ebd = write_ebd(
        folder, [seen(f"S{event}", count, name, **place(event)) for name, count, event in rows]
    )
    sampling = write_sampling(folder, [checklist(f"S{event}", **place(event)) for event in events])
    expected, n_missing_counts = read_by_hand(rows, events)
    data = read_ebird(ebd, sampling, species="Mallard", chunk_rows=chunk_rows)
    assert labelled(data) == expected
    assert data.n_missing_counts == n_missing_counts
    assert_array_equal(data.client_ids, sorted({observer for observer, *_ in expected}))
    assert_array_equal(data.sites, sorted({site for _, site, *_ in expected}))
    for cells in data.clients:
        assert_array_equal(cells, cells[np.lexsort(cells.T[::-1])])


def write_many(path, columns, row, n_rows, last=None):
    """Write a row many times, with a number in place of each @."""
    header, line = as_text([row], columns).splitlines(keepends=True)
    with path.open("w", encoding="utf-8") as file:
        file.write(header)
        file.writelines(line.replace("@", str(10**6 + k)) for k in range(n_rows))
        if last is not None:
            file.write(as_text([last], columns).splitlines(keepends=True)[1])


def test_memory_follows_what_is_kept(tmp_path):
    ebd, sampling = tmp_path / "ebd.txt", tmp_path / "sampling.txt"
    other = seen("S@", "4", "Smew", observer="obsr@", site="L@")
    incomplete = checklist("S@", observer="obsr@", site="L@", complete="0")

    def read():
        data = read_ebird(ebd, sampling, species="Mallard", chunk_rows=1000)
        assert_array_equal(data.clients[0], [[0, 0, 2]])

    def peak_of_reading(n_rows):
        write_many(ebd, EBD_COLUMNS, other, n_rows, last=seen("S1", "2"))
        write_many(sampling, SAMPLING_COLUMNS, incomplete, n_rows, last=checklist("S1"))
        return peak_memory(read)

    peak_of_reading(1000)  # imports and caches
    peak = peak_of_reading(9000)
    assert ebd.stat().st_size > 1.8e6
    assert peak < 1.25 * peak_of_reading(3000)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"OBSERVATION COUNT": "-3"}, "'OBSERVATION COUNT', got '-3' in line 3 of .* Correct it"),
        ({"OBSERVATION COUNT": "1.5"}, "number below 1e15 or 'X' in column .* got '1.5'"),
        ({"OBSERVATION COUNT": "1" * 16}, "number below 1e15 .* got '1111111111111111' in line 3"),
        ({"OBSERVATION COUNT": ""}, "got '' in line 3"),
        ({"OBSERVATION DATE": "05/01/2020"}, "2020-05-31 .*got '05/01/2020' in line 3 of .*'S2'"),
        ({"OBSERVATION DATE": "2020-02-30"}, "got '2020-02-30' in line 3"),
        ({"LOCALITY ID": ""}, "an identifier in column 'LOCALITY ID', got '' in line 3"),
        ({"SAMPLING EVENT IDENTIFIER": ""}, "'SAMPLING EVENT IDENTIFIER', got '' in line 3"),
        ({"ALL SPECIES REPORTED": "yes"}, "0 or 1 in .* got 'yes' in line 3 of .*'S2'"),
    ],
)
@pytest.mark.parametrize("chunk_rows", [1, 10])
def test_fields_that_cannot_be_read(tmp_path, change, message, chunk_rows):
    ebd = write_ebd(tmp_path, [seen("S1"), seen("S2") | change, seen("S3")])
    with pytest.raises(ValueError, match=message):
        read_ebird(ebd, complete_only=True, chunk_rows=chunk_rows)
    if "OBSERVATION COUNT" not in change:
        ebd = write_ebd(tmp_path, [seen("S9")])
        sampling = write_sampling(tmp_path, [checklist("S1"), checklist("S2") | change])
        with pytest.raises(ValueError, match=message):
            read_ebird(ebd, sampling, chunk_rows=chunk_rows)


@pytest.mark.skipif(os.name == "nt", reason="Windows says that the permission is denied")
def test_a_folder_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="Expected a regular file, .* got .*a file ebd"):
        read_ebird(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="pipes have no name in a folder on Windows")
def test_a_pipe_is_an_error(tmp_path):
    # Some thousand rows would be gone after the header, or it would be waited for ever.
    ebd, pipe = write_ebd(tmp_path, [seen("S1")]), tmp_path / "pipe"
    os.mkfifo(pipe)
    for paths in ([pipe], [ebd, pipe]):
        with pytest.raises(ValueError, match="more than once, got .*pipe"):
            read_ebird(*paths)


def test_a_truncated_file_is_an_error(tmp_path, monkeypatch):
    ebd = write_ebd(tmp_path, [seen("S1"), seen("S2")])
    for name in ("HOME", "USERPROFILE"):  # of which Windows has the second
        monkeypatch.setenv(name, str(tmp_path))
    whole = ebd.read_text(encoding="utf-8")
    for n_left in (whole.rindex("2020-01"), whole.rindex("S2"), whole.rindex("S2") + 1):
        ebd.write_text(whole[:n_left], encoding="utf-8")
        for path in (ebd, "~/ebd.txt"):
            with pytest.raises(ValueError, match="at the end of .*ebd.txt, got .* is cut off"):
                read_ebird(path)
    # In the last column nothing is lost; nor are blank lines at the end.
    ebd.write_text(whole + "\n\n", encoding="utf-8")
    assert len(read_ebird(ebd).clients) == 1
    # A line may be longer than what is looked at.
    ebd.write_text(whole.rstrip("\n") + "so many " * 20_000, encoding="utf-8")
    assert len(read_ebird(ebd).clients) == 1


def test_missing_columns_and_files_are_named(tmp_path):
    ebd = write_ebd(tmp_path, [seen("S1")])
    sampling = write_sampling(tmp_path, [checklist("S1")])
    missing = "Expected 'COMMON NAME', 'SCIENTIFIC NAME', 'OBSERVATION COUNT' among the columns of"
    with pytest.raises(
        ValueError, match=f"{missing} .*sampling.txt, got 'LAST EDITED DATE', 'COUNTRY"
    ):
        read_ebird(sampling)
    with pytest.raises(
        ValueError, match="Expected 'HAS MEDIA' among the columns of .*sampling.txt"
    ):
        read_ebird(ebd, sampling, by="HAS MEDIA")
    with pytest.raises(FileNotFoundError):
        read_ebird(tmp_path / "nothing.txt")


@pytest.mark.parametrize("separator", [",", ";"])
def test_other_separators_than_tabs_are_one_column(tmp_path, separator):
    path = write_ebd(tmp_path, [seen("S1")])
    path.write_text(path.read_text(encoding="utf-8").replace("\t", separator), encoding="utf-8")
    joined = separator.join(EBD_COLUMNS[:2])
    with pytest.raises(ValueError, match=f"got '{joined}.*with tabs"):
        read_ebird(path)


def test_empty_files_are_errors(tmp_path):
    ebd, empty = write_ebd(tmp_path, [seen("S1")]), tmp_path / "empty.txt"
    empty.write_text("", encoding="utf-8")
    late = tmp_path / "late.txt"
    late.write_text("\n" + ebd.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(ValueError, match="among the columns of .*late.txt, got"):
        read_ebird(late)
    for paths in ([empty], [ebd, empty]):
        with pytest.raises(ValueError, match="empty.txt is not a complete text file"):
            read_ebird(*paths)


@pytest.mark.parametrize(
    "kwargs, error, message",
    [
        (dict(values="counts"), ValueError, "values .* 'count', 'presence', got 'counts'"),
        (dict(freq="month"), ValueError, "freq .*got 'month'"),
        (dict(on_bad_lines="warn"), ValueError, "on_bad_lines .* 'error', 'skip', got 'warn'"),
        (dict(n_clients=0), ValueError, "n_clients .*>= 1, got 0"),
        (dict(n_clients=2.0), TypeError, "n_clients .*integer"),
        (dict(chunk_rows=0), ValueError, "chunk_rows to be an integer >= 1, got 0"),
        (dict(species=["Mallard"]), TypeError, r"species .* string, got \['Mallard'\]."),
        (dict(by=None), TypeError, "by .* string, got None."),
        (dict(sampling_path=["a"]), TypeError, "PathLike"),
        (dict(random_state="x"), ValueError, "random_state to be an integer .*, got 'x'"),
        (dict(start="spring"), ValueError, "start .*'2000-01', got 'spring'"),
        (dict(end=""), ValueError, "end .*'2000-01', got ''"),
        (dict(start=[2020]), ValueError, r"start .*got \[2020\]"),
        (dict(start=2020), ValueError, "start .*'2000-01', got 2020. Give a string"),
        (dict(complete_only="yes"), TypeError, "complete_only to be True or False, got 'yes'"),
        (dict(start="2020-02", end="2020-01"), ValueError, "start <= end, got start=.*Swap"),
    ],
)
def test_bad_parameters(tmp_path, kwargs, error, message):
    ebd = write_ebd(tmp_path, [seen("S1")])
    with pytest.raises(error, match=message):
        read_ebird(ebd, **kwargs)


def test_an_open_file_is_no_path(tmp_path):
    path = write_ebd(tmp_path, [seen("S1")])
    with path.open("rb") as file, pytest.raises(TypeError, match="PathLike"):
        read_ebird(file)


def test_blank_lines_count_as_lines(tmp_path):
    rows = [seen("S1", "5"), seen("S2", "many")]
    path = write_ebd(tmp_path, rows)
    header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text(header + lines[0] + "\n\n" + lines[1], encoding="utf-8")
    for chunk_rows in (1, 2, 100):
        with pytest.raises(ValueError, match="got 'many' in line 5 of"):
            read_ebird(path, chunk_rows=chunk_rows)
    path.write_text(header + "\n" + lines[0] + "   \n \t \n\n", encoding="utf-8")
    for chunk_rows in (1, 100):
        assert_array_equal(read_ebird(path, chunk_rows=chunk_rows).clients[0], [[0, 0, 5]])


def test_unused_columns_may_have_any_name(tmp_path):
    path = write_ebd(tmp_path, [seen("S1", "5")])
    path.write_text(
        path.read_text(encoding="utf-8").replace("HAS MEDIA", "HAS\xa0MEDIA"), encoding="utf-8"
    )
    assert_array_equal(read_ebird(path).clients[0], [[0, 0, 5]])


@pytest.mark.parametrize("chunk_rows", [1, 100])
def test_repeated_rows_count_once(tmp_path, chunk_rows):
    ebd = write_ebd(
        tmp_path, [seen("S1", "5"), seen("S1", "2"), seen("S2", "4", date="2020-03-02")]
    )
    zeros = [checklist("S3"), checklist("S4", site="L2"), checklist("S5", group="G1")]
    sampling = write_sampling(tmp_path, [checklist("S1"), checklist("S2"), *zeros])

    once = read_ebird(ebd, sampling, chunk_rows=chunk_rows)
    assert_array_equal(once.clients[0], [[0, 0, 0], [0, 0, 0], [0, 0, 7], [0, 2, 4], [1, 0, 0]])
    # As two downloads joined, with the line of names in the middle.
    ebd.write_text(2 * ebd.read_text(encoding="utf-8"), encoding="utf-8")
    sampling.write_text(2 * sampling.read_text(encoding="utf-8"), encoding="utf-8")
    for species in ("Mallard", None):
        twice = read_ebird(ebd, sampling, species=species, chunk_rows=chunk_rows)
        assert_array_equal(twice.clients[0], once.clients[0])
        assert twice.n_zeros == once.n_zeros == 3


def test_rows_without_an_identifier_are_not_repeated(tmp_path):
    unnamed = {"GLOBAL UNIQUE IDENTIFIER": ""}
    ebd = write_ebd(tmp_path, [seen("S1", "5", **unnamed), seen("S1", "2", **unnamed)])
    assert_array_equal(read_ebird(ebd).clients[0], [[0, 0, 7]])


def test_the_sampling_file_is_checked_first(tmp_path):
    broken = write_ebd(tmp_path, [seen("S1", count="many")])
    with pytest.raises(FileNotFoundError):
        read_ebird(broken, tmp_path / "nothing.txt")
    with pytest.raises(ValueError, match="these are reports of species"):
        read_ebird(broken, write_ebd(tmp_path, [seen("S2")], name="other.txt"))


def test_broken_archives_are_errors(tmp_path):
    text = as_text([seen(f"S{k}", str(k)) for k in range(2000)], EBD_COLUMNS).encode()
    archive = tmp_path / "two.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("ebd.txt", text)
        file.writestr("terms.txt", "terms of use")
    files = {
        "cut.txt.gz": gzip.compress(text)[:-2000],
        "cut.tar": archive.read_bytes()[:-2000],
        "text.zip": text,
        "plain.txt.gz": text,
        "packed.txt": gzip.compress(text),
        "plain.txt.bz2": text,
        "plain.txt.xz": text,
        "flipped.txt.xz": lzma.compress(text)[:600] + b"?" + lzma.compress(text)[601:],
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with tarfile.open(tmp_path / "folder.tar", "w") as file:
        (tmp_path / "folder").mkdir()
        file.add(tmp_path / "folder")
    files["folder.tar"] = None
    ebd = write_ebd(tmp_path, [seen("S1")])
    for name in ("two.zip", *files):
        with pytest.raises(Exception, match=f"(?s){name}.*text file"):
            read_ebird(tmp_path / name)
    text = as_text([checklist(f"S{k}") for k in range(2000)], SAMPLING_COLUMNS).encode()
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(text)[:-2000])
    for name in ("two.zip", *files):
        with pytest.raises(Exception, match=f"(?s){name}.*text file"):
            read_ebird(ebd, tmp_path / name)


def test_a_file_of_reports_is_no_sampling_file(tmp_path):
    # One checklist, of three species: three zeros for the Mallard otherwise.
    ebd = write_ebd(tmp_path, [seen("S1")])
    with pytest.raises(ValueError, match=r"one a row, in .*ebd\.txt, got .*'OBSERVATION COUNT'"):
        read_ebird(ebd, ebd)


def test_reading_requires_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)  # importing it raises ImportError
    make_site_counts(5, 4, 1, random_state=0)
    with pytest.raises(ImportError, match="pip install pandas"):
        read_ebird("nothing.txt")


def test_a_sampling_file_truncated_in_its_last_but_one_column(tmp_path):
    # That is GROUP IDENTIFIER: half of it would make another group.
    ebd = write_ebd(tmp_path, [seen("S1", group="G100")])
    sampling = write_sampling(tmp_path, [checklist("S1", group="G100"), checklist("S2")])
    whole = sampling.read_text(encoding="utf-8")
    sampling.write_text(whole[: whole.rindex("\t")], encoding="utf-8")
    n_fields = len(SAMPLING_COLUMNS)
    with pytest.raises(ValueError, match=rf"{n_fields} fields .*, got {n_fields - 1} .* cut off"):
        read_ebird(ebd, sampling)
