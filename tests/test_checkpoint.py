"""Files that runs are saved to: how they are written, named and replaced."""

import errno
import os
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest
from joblib import Parallel, delayed
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from checkpoints import ROUGH, make_clients, matrices
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer, _checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:Not converged")


def test_the_last_two_saves_are_kept(tmp_path):
    path = tmp_path / "run.npz"
    parameters = {**ROUGH, "random_state": 0, "max_iter": 10}
    estimator = FederatedGaussianMixture(2, checkpoint=path, checkpoint_every=4, **parameters).fit(
        make_clients()
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.npz", "run.npz.previous"]
    for name, n_rounds in ((path, 10), (f"{path}.previous", 8)):
        at = clone(estimator).set_params(checkpoint=None, max_iter=n_rounds)
        assert at.fit(make_clients(), resume_from=name).n_iter_ == n_rounds
        with np.load(name) as file:
            assert file["state.server.round_index"] == n_rounds


def test_a_save_that_was_killed_leaves_no_file_for_good(tmp_path):
    path = tmp_path / "run.npz"
    _checkpoint.save(path, {}, {"rounds": 1})
    os.link(path, f"{path}.previous")  # and no more: another process has kept it
    _checkpoint.save(path, {}, {"rounds": 2})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.npz", "run.npz.previous"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("n_names", [0, 1])
def test_a_damaged_file_never_replaces_the_last_whole_one(n_names, error, tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    for rounds in (1, 2):
        _checkpoint.save(path, {}, {"rounds": rounds})
    path.write_bytes(path.read_bytes()[:100])
    replace, named = os.replace, []

    def stopped(source, target):
        if len(named) == n_names:
            raise error
        named.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(error):
        _checkpoint.save(path, {}, {"rounds": 3})  # by a run that goes on from the one before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.npz", "run.npz.previous"]
    whole = path if n_names else f"{path}.previous"
    assert _checkpoint._read(whole)[1]["state.rounds"] == (3 if n_names else 1)


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EMFILE, "too many open files")])
def test_a_shortage_is_no_damage(error, tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    _checkpoint.save(path, {}, {"rounds": 1})

    def failing(*_, **__):
        raise error

    monkeypatch.setattr(np, "load", failing)
    with pytest.raises(type(error)):
        _checkpoint._read(path)
    if isinstance(error, MemoryError):  # a damaged header may claim any size
        path.write_bytes(path.read_bytes().replace(b"descr", b"discr", 1))
        with pytest.raises(ValueError, match="truncated or damaged"):
            _checkpoint._read(path)


def test_links_are_followed_as_the_system_does(tmp_path):
    (tmp_path / "real" / "sub").mkdir(parents=True)
    try:
        os.symlink(tmp_path / "real" / "sub", tmp_path / "link", target_is_directory=True)
    except OSError:
        pytest.skip("links need a privilege here")
    path = f"{tmp_path}/link/../run.npz"
    gm = FederatedGaussianMixture(2, checkpoint=path, tol=0, max_iter=3, random_state=0)
    gm.fit(make_clients())
    gm.set_params(checkpoint=None, max_iter=5).fit(make_clients(), resume_from=path)
    assert gm.n_iter_ == 5


def test_a_run_saves_where_it_began(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    gm = FederatedGaussianMixture(2, checkpoint="run.npz", checkpoint_every=1, tol=0, max_iter=4)

    def moving(number):
        os.chdir(tmp_path / "elsewhere")
        return 1.0

    with pytest.warns(ConvergenceWarning, match="Not converged"):
        gm.set_params(step_size=moving, random_state=0).fit(make_clients())
    assert not list((tmp_path / "elsewhere").iterdir())
    assert _checkpoint._read(tmp_path / "run.npz")[1]["state.server.round_index"] == 4


def test_what_killed_saves_left_is_removed_when_nobody_can_be_at_work(tmp_path, monkeypatch):
    left, other = (tmp_path / f"{name}0123abcd.tmp" for name in ("run[1].npz", "run1.npz"))
    left.touch()
    other.touch()
    os.utime(left, (0, 0))  # a link to an old checkpoint, which may be just about to be renamed
    _checkpoint.try_out(tmp_path / "run[1].npz")
    assert sorted(tmp_path.iterdir()) == sorted([left, other])
    monkeypatch.setattr(_checkpoint, "_ABANDONED", -1)
    _checkpoint.try_out(tmp_path / "run[1].npz")
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_save_that_fails_leaves_no_file(error, tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    _checkpoint.save(path, {}, {"rounds": 1})

    def fail(source, target):
        target.write_bytes(b"half of it")
        raise error

    monkeypatch.setattr(os, "link", lambda *args: os.stat(tmp_path / "no hard links here"))
    monkeypatch.setattr(_checkpoint.shutil, "copy2", fail)
    with pytest.raises(error):
        _checkpoint.save(path, {}, {"rounds": 2})
    assert [file.name for file in tmp_path.iterdir()] == ["run.npz"]


@pytest.mark.parametrize("fails", [3, 9])
def test_a_full_disk_is_told_and_the_fit_goes_on(fails, tmp_path, monkeypatch):
    path, saves, savez = tmp_path / "run.npz", [], np.savez

    def full_once(file, **arrays):
        saves.append(file)
        if len(saves) == fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        savez(file, **arrays)

    monkeypatch.setattr(np, "savez", full_once)
    gm = FederatedGaussianMixture(2, max_iter=9, random_state=0, tol=0.0, omega=1.0)
    whole = clone(gm).fit(make_clients())
    gm.set_params(checkpoint=path, checkpoint_every=1)
    with pytest.warns(UserWarning, match=f"Round {fails} could not be saved at .*No space left"):
        gm.fit(make_clients())
    assert_array_equal(gm.means_, whole.means_)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.npz", "run.npz.previous"]
    last = 9 if fails < 9 else 8
    assert _checkpoint._read(path)[1]["state.server.round_index"] == last
    assert _checkpoint._read(f"{path}.previous")[1]["state.server.round_index"] == last - 1


# Python collects the archive that it could not close.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_fit_stopped_from_the_keyboard_in_a_save_leaves_what_it_had_reached(
    tmp_path, monkeypatch
):
    path, saves = tmp_path / "run.npz", []
    savez = np.savez

    def stopped_in_a_member(file, **arrays):
        saves.append(file)
        if len(saves) < 3:
            return savez(file, **arrays)
        with zipfile.ZipFile(file, "w") as archive:
            member = archive.open("state.npy", "w")
            member.write(b"half of it")
            raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", stopped_in_a_member)
    gm = FederatedGaussianMixture(2, max_iter=9, random_state=0, tol=0.0, omega=1.0)
    gm.set_params(checkpoint=path, checkpoint_every=1)
    with pytest.warns(ConvergenceWarning, match="keyboard after 3 rounds"):
        gm.fit(make_clients())
    assert gm.n_iter_ == 3
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.npz", "run.npz.previous"]
    with np.load(path) as file:
        assert file["state.server.round_index"] == 2


def test_several_may_save_to_one_file(tmp_path):
    # As the fits of a search do, from several processes.
    path = tmp_path / "run.npz"

    def save_often(number):
        for k in range(60):
            _checkpoint.save(path, {"of": number}, {"rounds": k})

    Parallel(n_jobs=4, prefer="threads")(delayed(save_often)(number) for number in range(4))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.npz", "run.npz.previous"]
    with np.load(path) as file:
        assert file["state.rounds"] == 59


def test_who_may_read_a_checkpoint_is_who_may_read_any_file(tmp_path):
    path, any_file = tmp_path / "run.npz", tmp_path / "any"
    umask = os.umask(0o027)
    try:
        gm = FederatedGaussianMixture(2, checkpoint=path, checkpoint_every=1, max_iter=2)
        gm.fit(make_clients())
        any_file.touch()
    finally:
        os.umask(umask)
    modes = {os.stat(file).st_mode for file in (path, f"{path}.previous", any_file)}
    assert len(modes) == 1


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("mode", [0o600, 0o640])  # of which one is not that of new files
def test_a_private_checkpoint_stays_private(tmp_path, mode):
    path = tmp_path / "run.npz"
    _checkpoint.save(path, {}, {"rounds": 0})
    path.chmod(mode)
    _checkpoint.save(path, {}, {"rounds": 1})
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.skipif(os.name == "nt", reason="folders cannot be synced on Windows")
def test_a_file_is_on_the_disk_before_it_takes_the_name(tmp_path, monkeypatch):
    path, calls = tmp_path / "run.npz", []
    fsync, replace = os.fsync, os.replace

    def synced(handle):
        calls.append(("sync", os.fstat(handle).st_ino))
        fsync(handle)

    def renamed(source, target):
        calls.append(("name", os.stat(source).st_ino, str(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    for value in range(2):
        calls.clear()
        _checkpoint.save(path, {}, {"a": np.full(3, value)})
        file, folder = path.stat().st_ino, tmp_path.stat().st_ino
        named = calls.index(("name", file, str(path)))
        assert calls.index(("sync", file)) < named < calls.index(("sync", folder))
    assert path.with_name("run.npz.previous").exists()


def test_a_file_that_is_open_elsewhere_is_an_error(tmp_path, monkeypatch):
    def refused(source, target):  # as Windows does
        raise PermissionError(13, "in use", target)

    monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(PermissionError, match="in use"):
        _checkpoint.save(tmp_path / "run.npz", {}, {"a": np.zeros(3)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("as_path", [str, Path])
def test_a_tilde_is_no_home_as_for_numpy(as_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    imputer = FederatedMatrixImputer(checkpoint=as_path("~/run.npz"), max_iter=3)
    with pytest.raises(ValueError, match=r"got .*~/run.npz.*in a folder that exists"):
        imputer.fit(matrices())


def test_a_folder_that_does_not_exist_is_said_before_the_first_round(tmp_path):
    imputer = FederatedMatrixImputer(checkpoint=tmp_path / "none" / "run.npz", max_iter=3)
    with pytest.raises(ValueError, match="in a folder that exists"):
        imputer.fit(matrices())


def test_a_folder_is_no_file(tmp_path):
    for folder in (tmp_path, ""):
        with pytest.raises(ValueError, match="to be a file .*it is a folder.* Give the path"):
            FederatedMatrixImputer(checkpoint=folder, max_iter=3).fit(matrices())
    with pytest.raises(ValueError, match="got a folder.* Give the path"):
        FederatedMatrixImputer(max_iter=3).fit(matrices(), resume_from=tmp_path)
    with pytest.raises(TypeError, match="Expected resume_from to be a path or None, got True"):
        FederatedMatrixImputer(max_iter=3).fit(matrices(), resume_from=True)


@pytest.mark.skipif(os.name == "nt", reason="pipes have no name in a folder on Windows")
def test_a_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="to be a file .*pipe.* or pipe.*Give the path"):
        FederatedMatrixImputer(checkpoint=tmp_path / "pipe", max_iter=3).fit(matrices())
    assert (tmp_path / "pipe").is_fifo()
    # Nor is one read, which would wait for ever.
    with pytest.raises(ValueError, match="resume from at .*pipe, got a .*pipe. Give the path"):
        FederatedMatrixImputer(max_iter=3).fit(matrices(), resume_from=tmp_path / "pipe")


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_a_link_is_kept_and_what_it_leads_to_is_written(tmp_path):
    (tmp_path / "scratch").mkdir()
    link, target = tmp_path / "run.npz", tmp_path / "scratch" / "a.npz"
    link.symlink_to(target)
    for value in range(2):
        _checkpoint.save(link, {}, {"a": np.full(3, value)})
    assert link.is_symlink() and not target.is_symlink()
    assert_array_equal(_checkpoint._read(link)[1]["state.a"], 1)
    assert {path.name for path in target.parent.iterdir()} == {"a.npz", "a.npz.previous"}


@pytest.mark.parametrize("name", ["a" * 250, "a" * 300, "run\0.npz"], ids=["long", "longer", "NUL"])
def test_a_name_that_no_file_can_have_is_said_before_the_first_round(name, tmp_path):
    gm = FederatedGaussianMixture(2, checkpoint=tmp_path / name, max_iter=3)
    with pytest.raises(ValueError, match="Expected checkpoint to be a file that can be written"):
        gm.fit(make_clients())
    assert not hasattr(gm, "n_iter_")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "pathconf"), reason="Windows limits whole paths, not names")
def test_the_longest_name_that_is_accepted_is_saved_twice(tmp_path):
    longest = os.pathconf(tmp_path, "PC_NAME_MAX") - len("12345678.tmp")
    gm = FederatedGaussianMixture(2, checkpoint=tmp_path / ("a" * longest), checkpoint_every=1)
    gm.set_params(max_iter=2).fit(make_clients())
    assert len(list(tmp_path.iterdir())) == 2
