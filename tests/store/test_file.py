"""What is special about a directory: other processes, kills, full disks, hostile entries."""

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from weightsync import failpoints
from weightsync.errors import Conflict, Denied, Invalid, NoSpace, NotFound, OutcomeUnknown, Unavailable, WeightsyncError
from weightsync.store import file as file_module
from weightsync.store.file import HASHED_BYTES, LOCK, LOCK_WAIT_S, FileStore
from weightsync.store.settle import ensure
from weightsync.store.temporary import DIRECTORY, STALE_AFTER_S
from weightsync.testing.clock import ManualClock

OLD, NEW = b"old" * 1000, b"newer" * 1000
POINTS = ["store.file.write", "store.file.sync", "store.file.publish", "store.file.published"]
PRELUDE = "import sys; from weightsync.store.file import FileStore; s = FileStore(sys.argv[1]); old, new = b'old' * 1000, b'newer' * 1000; "
ACTS = {"create": "s.create('a/new', new)", "swap": "s.swap('a/k', new, s.stat('a/k').etag)", "put": "s.put('a/k', new)"}


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "store")
    store.create("a/k", OLD)
    return store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def child(code: str, root: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, str(root)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def arm(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(failpoints, "_armed", failpoints.parse(text))


def temporaries(root: Path) -> list[Path]:
    return list((root / DIRECTORY).iterdir())


def content(store: FileStore, key: str) -> bytes | None:
    try:
        return store.get(key, max_bytes=1 << 20).data
    except NotFound:
        return None


# kills


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("act", ACTS)
def test_a_kill_leaves_old_or_new(store: FileStore, root: Path, act: str, point: str) -> None:
    process = child(ACTS[act], root, WEIGHTSYNC_FAILPOINTS=f"{point}=kill")
    _, error = process.communicate(timeout=60)
    if act == "put" and point == "store.file.published":  # never syncs the directory
        assert process.returncode == 0
    else:
        assert process.returncode == -signal.SIGKILL, error
    key, before = ("a/new", None) if act == "create" else ("a/k", OLD)
    assert content(store, key) == (NEW if point == "store.file.published" else before)
    assert {found.key for found in store.list("")} <= {"a/k", "a/new"}
    store.put(key, b"goes on")
    assert content(store, key) == b"goes on"


def test_kills_at_any_time_lose_nothing_that_was_acknowledged(store: FileStore, root: Path) -> None:
    store.create("n", b"%08d" % 0 * 9000)
    loop = """
n, etag = int(s.get('n', max_bytes=99999).data[:8]), s.stat('n').etag
while True:
    n += 1
    etag = s.swap('n', b'%08d' % n * 9000, etag)
    print(n, flush=True)
"""
    for round_ in range(8):
        process = child("\n" + loop, root)
        assert process.stdout is not None
        for _ in range(1 + round_ % 3):
            process.stdout.readline()
        process.kill()
        acknowledged = [int(line) for line in process.communicate(timeout=60)[0].split()]
        data = content(store, "n") or b""
        assert data == data[:8] * 9000
        assert int(data[:8]) >= max(acknowledged, default=1)


def test_leftovers_are_removed_when_stale(store: FileStore, root: Path) -> None:
    clock = ManualClock(now_s=2_000_000_000.0)
    old, young = root / DIRECTORY / "old", root / DIRECTORY / "young"
    for path, age_s in ((old, STALE_AFTER_S + 9), (young, STALE_AFTER_S - 9)):
        path.write_bytes(b"half")
        os.utime(path, (clock.now_s() - age_s,) * 2)
    fresh = FileStore(root, clock=clock)
    assert [found.key for found in fresh.list("")] == ["a/k"]
    fresh.put("b", b"")
    assert temporaries(root) == [young]


def test_a_writer_whose_file_was_removed_starts_over(store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(_: str) -> None:
        for path in temporaries(root):
            path.unlink()

    monkeypatch.setattr(file_module, "failpoint", sweep)
    for act in (lambda: store.create("b", NEW), lambda: store.swap("a/k", NEW, store.stat("a/k").etag), lambda: store.put("a/k", NEW)):
        with pytest.raises(Unavailable):
            act()
    assert content(store, "a/k") == OLD


def test_data_and_name_are_synced_in_this_order(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    events = []

    def note(name: str) -> None:
        real = getattr(os, name)

        def noted(*arguments: object, **keywords: object) -> object:
            kind = "dir" if name == "fsync" and stat.S_ISDIR(os.fstat(arguments[0]).st_mode) else ""  # type: ignore[arg-type]
            events.append(name + kind)
            return real(*arguments, **keywords)

        monkeypatch.setattr(os, name, noted)

    for name in ("fdatasync", "fsync", "link", "rename"):
        note(name)
    etag = store.create("a/b", b"x")
    assert events == ["fdatasync", "link", "fsyncdir"]
    del events[:]
    store.swap("a/b", b"y", etag)
    assert events == ["fdatasync", "rename", "fsyncdir"]
    del events[:]
    store.create("c/d/e", b"x")
    assert events == ["fdatasync", "fsyncdir", "fsyncdir", "link", "fsyncdir"]  # what is above a new directory names it
    del events[:]
    store.put("a/b", b"z")
    assert events == ["fdatasync", "rename"]


# failing systems


@pytest.mark.parametrize("act", ["create", "swap", "put"])
@pytest.mark.parametrize("point", POINTS[:3])
@pytest.mark.parametrize(
    "failure",
    [("ENOSPC", NoSpace), ("EDQUOT", NoSpace), ("EACCES", Denied), ("EROFS", Denied), ("EIO", Unavailable)],
)
def test_errors_of_the_system_change_nothing(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, act: str, point: str, failure: tuple[str, type[WeightsyncError]]
) -> None:
    code, error = failure
    etag = store.stat("a/k").etag
    acts: dict[str, Callable[[], str]] = {
        "create": lambda: store.create("a/new", NEW),
        "swap": lambda: store.swap("a/k", NEW, etag),
        "put": lambda: store.put("a/k", NEW),
    }
    arm(monkeypatch, f"{point}=raise:{code}")
    with pytest.raises(error, match="object 'a/") as caught:
        acts[act]()
    assert type(caught.value) is error
    assert caught.value.remedy
    arm(monkeypatch, "")
    assert temporaries(Path(store.url.removeprefix("file://"))) == []
    assert (content(store, "a/k"), content(store, "a/new")) == (OLD, None)
    acts[act]()
    assert NEW in (content(store, "a/k"), content(store, "a/new"))


@pytest.mark.parametrize("code", ["EIO", "ENOSPC"])
def test_a_failed_directory_sync_leaves_the_outcome_unknown(store: FileStore, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    arm(monkeypatch, f"store.file.published=raise:{code}@1")
    with pytest.raises(OutcomeUnknown):
        store.create("a/new", NEW)
    ensure(store, "a/new", NEW)
    arm(monkeypatch, f"store.file.published=raise:{code}@1")
    with pytest.raises(OutcomeUnknown):
        store.swap("a/k", NEW, store.stat("a/k").etag)


def test_a_file_size_limit_is_no_space(store: FileStore, root: Path) -> None:
    code = """
import resource, signal
from weightsync.errors import NoSpace
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    s.create('big', bytes(10000))
except NoSpace as error:
    print(error)
"""
    output, error = child(code, root).communicate(timeout=60)
    assert "'big'" in output, error
    assert temporaries(root) == []
    assert content(store, "big") is None


def test_no_permission_is_denied(tmp_path: Path) -> None:
    root = tmp_path / "closed"
    FileStore(root).create("a/k", b"x")
    code = """
import os, pathlib
from weightsync.errors import Denied
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)
look = lambda: s.get('a/k', max_bytes=9), lambda: list(s.list(''))
change = lambda: s.create('a/n', b''), lambda: s.put('a/k', b''), lambda: s.delete('a/k')
for act in look + change:
    try:
        act()
    except Denied as error:
        print(error)
"""
    for path in (*root.parents[:3], tmp_path):  # pytest's directories are private; the child may be another user
        path.chmod(path.stat().st_mode | 0o711)
    root.chmod(0)
    try:
        output, error = child(code, root).communicate(timeout=60)
    finally:
        root.chmod(0o755)
    assert output.count("give this user access") == 5, error


# other processes and threads


def test_processes_count_together(store: FileStore, root: Path) -> None:
    store.create("n", b"0")
    loop = """
from weightsync.errors import Conflict
done = 0
while done < 15:
    found = s.get('n', max_bytes=9)
    try:
        s.swap('n', b'%d' % (int(found.data) + 1), found.etag)
        done += 1
    except Conflict:
        pass
"""
    workers = [child("\n" + loop, root) for _ in range(3)]
    for worker in workers:
        _, error = worker.communicate(timeout=60)
        assert worker.returncode == 0, error
    assert content(store, "n") == b"45"


def test_a_lock_that_is_held_for_ever_is_named(store: FileStore, root: Path) -> None:
    code = """
import fcntl, os, time
fcntl.flock(os.open(sys.argv[1] + '/.lock', os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
print('locked', flush=True)
time.sleep(600)
"""
    holder = child("\n" + code, root)
    assert holder.stdout is not None
    holder.stdout.readline()
    clock = ManualClock()
    try:
        with pytest.raises(Unavailable, match="locked by another process"):
            FileStore(root, clock=clock).put("a/k", NEW)
    finally:
        holder.kill()
        holder.communicate()
    assert sum(clock.sleeps_s) >= LOCK_WAIT_S
    store.put("a/k", NEW)  # the kernel has freed the lock of the dead
    assert content(store, "a/k") == NEW


def test_creating_while_directories_come_and_go(store: FileStore) -> None:
    def work(i: int) -> None:
        for n in range(15):
            key = f"shared/dir/{i}-{n}"
            ensure(store, key, b"x")
            store.delete(key)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert [found.key for found in store.list("")] == ["a/k"]


def test_deleting_removes_empty_directories(store: FileStore, root: Path) -> None:
    store.create("a/b/c/d", b"")
    store.create("a/b/e", b"")
    store.delete("a/b/c/d")
    assert sorted(path.name for path in (root / "a" / "b").iterdir()) == ["e"]
    store.delete("a/b/e")
    assert sorted(path.name for path in (root / "a").iterdir()) == ["k"]
    store.delete("a/k")
    assert sorted(path.name for path in root.iterdir()) == [LOCK, DIRECTORY]


# what others put into the directory


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_symbolic_links_are_not_followed(store: FileStore, root: Path, tmp_path: Path, where: str) -> None:
    secret = (tmp_path if where == "outside" else root / "a") / "secret"
    secret.mkdir()
    (secret / "k").write_bytes(b"secret")
    (root / "link").symlink_to(secret)
    (root / "a" / "direct").symlink_to(secret / "k")
    for key in ("link/k", "a/direct"):
        for act in (lambda key=key: store.get(key, max_bytes=99), lambda key=key: store.stat(key), lambda key=key: store.create(key, b"")):
            with pytest.raises((Invalid, Conflict)):
                act()
    for act in (lambda: store.create("link/new", b"x"), lambda: store.put("link/k", b"x"), lambda: store.delete("link/k")):
        with pytest.raises(Invalid, match="symbolic link"):
            act()
    with pytest.raises(Invalid, match="symbolic link"):
        list(store.list("link/"))
    assert (secret / "k").read_bytes() == b"secret"
    assert [path.name for path in secret.iterdir()] == ["k"]
    assert not [found.key for found in store.list("") if "link" in found.key or "direct" in found.key]


def test_the_root_may_be_a_link(store: FileStore, root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    assert content(FileStore(tmp_path / "alias"), "a/k") == OLD


def test_files_that_are_no_objects_are_left_out(store: FileStore, root: Path) -> None:
    for name in ("with space", ".hidden", "a/notes \u00e9.txt", "a/" + "x" * 201):
        (root / name).write_bytes(b"")
    (root / "some dir").mkdir()
    (root / "some dir" / "k").write_bytes(b"")
    assert [found.key for found in store.list("")] == ["a/k"]


@pytest.mark.timeout(20)
def test_pipes_and_devices_do_not_hang(store: FileStore, root: Path) -> None:
    os.mkfifo(root / "a" / "pipe")
    for act in (lambda: store.get("a/pipe", max_bytes=9), lambda: store.stat("a/pipe"), lambda: store.create("a/pipe", b"")):
        with pytest.raises((Invalid, Conflict)):
            act()
    assert [found.key for found in store.list("")] == ["a/k"]


def test_an_object_cannot_begin_another(store: FileStore) -> None:
    for act in (
        lambda: store.create("a/k/below", b""),
        lambda: store.put("a/k/below", b""),
        lambda: store.create("a", b""),
        lambda: store.put("a", b""),
    ):
        with pytest.raises(Invalid, match="begin another"):
            act()
    assert content(store, "a/k") == OLD


def test_a_truncated_object_is_not_padded(store: FileStore, root: Path) -> None:
    store.create("big", bytes(HASHED_BYTES + 1))
    os.truncate(root / "big", 100)
    with pytest.raises(WeightsyncError):
        store.read_into("big", memoryview(bytearray(HASHED_BYTES + 1)))


# tags


@pytest.mark.parametrize("size", [0, 1, HASHED_BYTES, HASHED_BYTES + 1])
def test_replaced_objects_have_new_tags(store: FileStore, size: int) -> None:
    tags = [store.put("t", bytes([i]) * size) for i in range(3)] if size else [store.put("t", b"")]
    assert len(set(tags)) == len(tags)
    assert store.stat("t").etag == tags[-1]


def test_settings_are_checked() -> None:
    with pytest.raises(Invalid, match="not absolute"):
        FileStore("relative")


def test_errno_table_covers_what_the_kernel_may_say() -> None:
    from weightsync.store.oserrors import from_os_error

    table = {
        errno.ENOSPC: NoSpace,
        errno.EDQUOT: NoSpace,
        errno.EFBIG: NoSpace,
        errno.EACCES: Denied,
        errno.EPERM: Denied,
        errno.EROFS: Denied,
        errno.ENOENT: NotFound,
        errno.ENOTDIR: NotFound,
        errno.ELOOP: Invalid,
        errno.ENAMETOOLONG: Invalid,
        errno.EIO: Unavailable,
        errno.EMFILE: Unavailable,
        errno.ESTALE: Unavailable,
    }
    for code, kind in table.items():
        error = from_os_error(OSError(code, os.strerror(code)), "cannot do it")
        assert type(error) is kind
        assert "cannot do it" in str(error)
