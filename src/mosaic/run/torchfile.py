"""Writes files that `torch.load(path, weights_only=True)` reads, without torch.

torch's format is a zip of stored members: `data.pkl` (a pickle that names each tensor's storage, shape and strides),
`data/<n>` (the storages' raw bytes), `byteorder` and `version`, all in a folder named like the file. The pickle is
assembled from opcodes by hand, so that it contains only what the weights-only reader allows.
"""

from __future__ import annotations

import os
import struct
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

State = Mapping[str, npt.NDArray[Any]]
Content = State | tuple[State, ...] | Mapping[str, Any]
STORAGES = {
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "float16": "HalfStorage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
}

_PROTO_2 = b"\x80\x02"
_MARK, _TUPLE, _EMPTY_TUPLE, _REDUCE = b"(", b"t", b")", b"R"
_BINPERSID, _SETITEMS, _STOP = b"Q", b"u", b"."
_NONE, _NEWTRUE, _NEWFALSE, _EMPTY_DICT = b"N", b"\x88", b"\x89", b"}"
_EMPTY_ORDERED_DICT = b"ccollections\nOrderedDict\n" + _EMPTY_TUPLE + _REDUCE
_REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
_ALIGNMENT = 64


METADATA = "mosaic.json"
"""A further member of the zip, which torch does not read: where the weights come from."""


def save_state_dict(path: str | os.PathLike[str], state: Content, metadata: str = "") -> None:
    """Write a state dict as `torch.save(module.state_dict(), path)` does, atomically.

    Several state dicts are written as the tuple or dictionary that contains them, together with plain values.
    `metadata` is a text that torch ignores.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.tmp")
    arrays: list[npt.NDArray[Any]] = []
    index = b"".join((_PROTO_2, _pickle(state, arrays), _STOP))
    try:
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED) as archive:
            _write_member(archive, f"{target.stem}/data.pkl", index)
            _write_member(archive, f"{target.stem}/byteorder", sys.byteorder.encode())
            for number, array in enumerate(arrays):
                _write_member(archive, f"{target.stem}/data/{number}", array.tobytes())
            _write_member(archive, f"{target.stem}/version", b"3\n")
            if metadata:
                _write_member(archive, f"{target.stem}/{METADATA}", metadata.encode())
        os.replace(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _write_member(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Write a member, padded so that its content starts at a multiple of 64, as torch's mmap requires."""
    info = zipfile.ZipInfo(name)
    assert archive.fp is not None
    begin = archive.fp.tell() + 30 + len(name.encode()) + 4
    padding = -begin % _ALIGNMENT
    info.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    archive.writestr(info, content)


def _pickle(content: Any, arrays: list[npt.NDArray[Any]]) -> bytes:
    """Pickle any content that such a file may have, and append its arrays to `arrays`."""
    if isinstance(content, (tuple, list)):
        return _tuple([_pickle(part, arrays) for part in content])
    if isinstance(content, Mapping):
        is_state = all(isinstance(value, np.ndarray) for value in content.values())
        parts = [_EMPTY_ORDERED_DICT if is_state else _EMPTY_DICT, _MARK]
        for name, value in content.items():
            parts += [_text(name), _pickle(value, arrays)]
        return b"".join((*parts, _SETITEMS))
    if isinstance(content, np.ndarray):
        arrays.append(np.asarray(content, content.dtype.newbyteorder("="), order="C"))
        return _tensor(str(len(arrays) - 1), arrays[-1])
    if content is None or isinstance(content, bool):
        return {None: _NONE, True: _NEWTRUE, False: _NEWFALSE}[content]
    if isinstance(content, int):
        return _number(content)
    if isinstance(content, float):
        return b"G" + struct.pack(">d", content)
    if isinstance(content, str):
        return _text(content)
    raise TypeError(f"A file of weights cannot contain a {type(content).__name__}.")


def _tensor(key: str, array: npt.NDArray[Any]) -> bytes:
    try:
        storage = STORAGES[array.dtype.name]
    except KeyError:
        raise TypeError(f"A torch file cannot contain {array.dtype}; expected one of {', '.join(STORAGES)}.") from None
    strides = [stride // array.itemsize for stride in array.strides]
    storage_id = [_text("storage"), f"ctorch\n{storage}\n".encode(), _text(key), _text("cpu"), _number(array.size)]
    parts = [
        _tuple(storage_id) + _BINPERSID,
        _number(0),
        _tuple([_number(length) for length in array.shape]),
        _tuple([_number(stride) for stride in strides]),
        _NEWFALSE,
        _EMPTY_ORDERED_DICT,
    ]
    return _REBUILD + _tuple(parts) + _REDUCE


def _tuple(items: list[bytes]) -> bytes:
    return b"".join((_MARK, *items, _TUPLE))


def _text(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def _number(number: int) -> bytes:
    if number < 1 << 31:
        return b"J" + struct.pack("<i", number)
    return b"\x8a\x08" + struct.pack("<q", number)
