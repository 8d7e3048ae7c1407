"""Tests of loading files of torch.save that anybody may have made."""

import io
import pickle
import re
import struct
import subprocess
import sys
import zipfile
from contextlib import suppress
from copy import copy

import pytest
import torch

from vpoc.training.model_file.saved_file import load_saved, what_is_wrong


def saved(value, *, legacy=False):
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=not legacy)
    return file.getvalue()


def with_pickle(content):
    """Return a file of torch.save in which another pickle is in the place of its own."""
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved({"a": torch.zeros(1)}))) as archive, zipfile.ZipFile(changed, "w") as other:
        for part in archive.infolist():
            own = part.filename.endswith("data.pkl")
            other.writestr(part.filename, content if own else archive.read(part))
    return changed.getvalue()


def doubled(times):
    """Return the pickle of a dictionary, with a key of a tuple that has the one before it twice, and that the next."""
    keys = b")" + b"".join(b"q%ch%c\x86" % (number, number) for number in range(times))
    return b"\x80\x02}" + keys + b"Ns."


def test_parts_that_overlap_are_in_no_file():
    """Each of the parts would take its memory."""
    changed = io.BytesIO()
    both = saved({"a": torch.zeros(1000), "b": torch.zeros(1000)})
    with zipfile.ZipFile(io.BytesIO(both)) as archive, zipfile.ZipFile(changed, "w") as other:
        for part in archive.infolist():
            if part.filename.endswith("data/1"):
                last = copy(other.NameToInfo[part.filename.replace("data/1", "data/0")])
                last.filename = part.filename
            else:
                other.writestr(part.filename, archive.read(part))
        other.filelist.append(last)
    changed.seek(0)
    assert torch.load(changed, weights_only=True).keys() == {"a", "b"}
    with pytest.raises(ValueError, match="parts overlap"):
        load_saved(changed, only_tensors=False)


def split(content):
    """Return what is before the directory of a zip archive, the directory, and its end."""
    end = content.rindex(b"PK\5\6")
    length, begins = struct.unpack("<2I", content[end + 12 : end + 20])
    return content[:begins], content[begins : begins + length], content[end:]


def harmless(directory):
    """Return a directory with the same names, of parts that are not compressed and have no bytes."""
    changed, place = bytearray(directory), 0
    while place < len(changed):
        changed[place + 10 : place + 12], changed[place + 20 : place + 28] = bytes(2), bytes(8)
        place += 46 + sum(struct.unpack("<3H", changed[place + 28 : place + 34]))
    return bytes(changed)


def wide(directory, begins, place):
    """Return the end of a large archive, which names the place of its directory, and what names the place of that."""
    count = directory.count(b"PK\1\2")
    end = struct.pack("<4sQ12x4Q", b"PK\6\6", 44, count, count, len(directory), begins)
    return end, struct.pack("<4s4xQI", b"PK\6\7", place, 1)


@pytest.mark.parametrize("only_tensors", [True, False])
@pytest.mark.parametrize("kind", ["before the end", "behind the end", "wide"])
def test_a_second_directory_is_in_no_file(kind, only_tensors):
    """Python reads the one before the end, which hides the compressed parts; torch reads the one at the place named."""
    made = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(saved({"a": torch.zeros(100_000)}))) as archive,
        zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as other,
    ):
        for part in archive.infolist():
            other.writestr(part.filename, archive.read(part))
    parts, directory, end = split(made.getvalue())
    begins, length = len(parts), len(directory)
    content = parts + directory + harmless(directory) + end
    if kind == "wide":
        read, place = wide(directory, begins, begins + length)
        other_read, _ = wide(directory, begins + length + len(read), 0)
        content = parts + directory + read + harmless(directory) + other_read + place + end
    if kind == "behind the end":
        end = end[:16] + struct.pack("<IH", begins + length + len(end), length)
        content = parts + harmless(directory) + end + directory
    assert torch.load(io.BytesIO(content), weights_only=True)["a"].numel() == 100_000
    # Later versions of Python refuse some of these themselves.
    with pytest.raises((ValueError, zipfile.BadZipFile), match=r"two directories|Corrupt zip64"):
        load_saved(io.BytesIO(content), only_tensors=only_tensors)


@pytest.mark.parametrize("only_tensors", [True, False])
def test_a_key_of_tuples_in_tuples_many_times_over_is_in_no_file(only_tensors):
    """Hashing it takes twice as long with each of them: 60 take centuries."""
    few = load_saved(io.BytesIO(with_pickle(doubled(4))), only_tensors=only_tensors)
    assert len(pickle.dumps(few)) > 0
    with pytest.raises(ValueError, match="more values than bytes"):
        load_saved(io.BytesIO(with_pickle(doubled(60))), only_tensors=only_tensors)


def test_a_model_names_no_type_that_takes_memory_of_any_size():
    content = with_pickle(b"\x80\x02c__builtin__\nbytearray\nK\x05\x85R.")
    # Older torch refuses the type by itself.
    with suppress(pickle.UnpicklingError):
        assert load_saved(io.BytesIO(content), only_tensors=False) == bytearray(5)
    with pytest.raises(ValueError, match="names __builtin__ bytearray"):
        load_saved(io.BytesIO(content), only_tensors=True)


nested: list[object] = [torch.zeros(1)]
empty: list[object] = []
for _ in range(40):
    nested, empty = [nested, nested], [empty, empty]
nested.append(nested)
betas = (0.9, 0.999)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (saved({"a": nested, "groups": [{"betas": betas}] * 9}), ""),
        (saved({"w": torch.nn.Parameter(torch.zeros(2)), "of": torch.Size([2])}, legacy=True), ""),
        (saved(empty), "it holds no tensor"),
        (saved(torch.zeros(2, device="meta")), "it holds no tensor"),
        (b"no model", ".*Error: .*"),
        (b"", ".*Error: .*"),
    ],
    ids=["nested", "legacy", "empty", "meta", "other", "nothing"],
)
def test_a_file_of_weights_loads_and_holds_a_tensor(content, said, tmp_path):
    (tmp_path / "m.pt").write_bytes(content)
    assert re.fullmatch(said, what_is_wrong(tmp_path / "m.pt") or "")


@pytest.mark.parametrize(("content", "said"), [(saved(torch.zeros(2)), ""), (saved(empty), "it holds no tensor\n")])
def test_its_status_says_whether_a_file_of_weights_loads(content, said, tmp_path):
    (tmp_path / "m.pt").write_bytes(content)
    words = [sys.executable, "-m", "vpoc.training.model_file.saved_file", tmp_path / "m.pt"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (bool(said), said)


@pytest.mark.parametrize("size", ["J\xff\xff\xff\x7f", "copies"])
def test_a_small_file_does_not_fill_the_memory_that_loads_it(size, tmp_path):
    """Of values that no tensor needs, a program may save some: one that says its size, or one in many copies."""
    one = b"c__builtin__\nbytearray\nq\0"
    text = b"c_codecs\nencode\nX" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20) + b"X\6\0\0\0latin1\x86Rq\1"
    copies = b"h\0h\1\x85R" * 2048 if size == "copies" else b"h\0" + size.encode("latin1") + b"\x85R"
    (tmp_path / "m.pt").write_bytes(with_pickle(b"\x80\x02]q\2(" + one + text + copies + b"e."))
    words = [sys.executable, "-m", "vpoc.training.model_file.saved_file", tmp_path / "m.pt"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    # Older torch refuses the type by itself.
    assert re.fullmatch(r"(MemoryError: loading it takes many times|UnpicklingError: )[\s\S]*", done.stderr)
    assert done.returncode == 1
