"""Files of torch, without torch: written so that `torch.load(path, weights_only=True)` reads them, and read without
unpickling anything.
"""

from __future__ import annotations

import math
import os
import pickletools
import struct
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mosaic.contracts.errors import BadInput, CheckpointDamaged

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


# --- Reads the weights in a file that `torch.save` wrote, without torch and without unpickling anything. The pickle
#     inside is not loaded but interpreted, opcode by opcode, by a machine that can build containers, numbers, strings
#     and tensors, and nothing else. A file with anything else could run code when loaded, so it is rejected.


MAX_PICKLE_BYTES = 4 << 20
"""Of the index, which has some 150 bytes per tensor."""
MAX_SHARING = 16
"""Bytes of all tensors per byte of the file: SB3 saves the network that reads images under three names, for example."""
_DTYPES = {storage: np.dtype(name) for name, storage in STORAGES.items()}
_DICT, _TENSOR, _PARAMETER = (
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
)
_ORDER: dict[bytes, Literal["<", ">"]] = {b"little": "<", b"big": ">"}


def read_weights(path: Path, content: IO[bytes] | None = None) -> Any:
    """Return the saved arrays in their containers; raise if the file is damaged or contains anything else.

    `content` is given where the file is a part of another one, at `path`.
    """
    try:
        with zipfile.ZipFile(content or path) as archive:
            if expands(archive):  # torch stores without compression
                raise CheckpointDamaged(f"{path} is not a file written by torch.save (it is compressed).")
            broken = archive.testzip()
            if broken is not None:
                raise CheckpointDamaged(f"{path} is damaged ({broken}: wrong checksum). Use a checkpoint of its run.")
            return _Archive(path, archive).read()
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        problem = "not a file written by torch.save" if isinstance(error, zipfile.BadZipFile) else "not readable"
        raise CheckpointDamaged(f"{path} is damaged or {problem} ({error}). Use a checkpoint of its run.") from None


def read_metadata(path: Path) -> str:
    """Return the text that `save_state_dict` stored with the weights, which were read; empty where there is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = (info for info in archive.infolist() if info.filename.partition("/")[2] == METADATA)
            return next((archive.read(info).decode() for info in members), "")
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise CheckpointDamaged(f"{path} is damaged ({error}). Use a checkpoint of its run.") from None


def expands(archive: zipfile.ZipFile) -> bool:
    """Whether its members may have more bytes than the archive: they are compressed, or overlap."""
    members = archive.infolist()
    is_stored = all(info.compress_type == zipfile.ZIP_STORED for info in members)
    return not is_stored or sum(info.file_size for info in members) > archive.start_dir


class _Storage(NamedTuple):
    kind: str
    key: str
    length: int


class _Function(NamedTuple):
    name: str


class _Mark:
    pass


class _Malformed(Exception):
    """The pickle is invalid; the message is part of a sentence."""


class _Archive:
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path = path
        self._archive = archive
        self._members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        self._storages: dict[_Storage, npt.NDArray[Any]] = {}
        self._bytes_left = MAX_SHARING * archive.start_dir

    def read(self) -> Any:
        index = self._member("data.pkl")
        if index.file_size > MAX_PICKLE_BYTES:
            raise CheckpointDamaged(
                f"{self._path} is not a file written by torch.save: its index has {index.file_size:,} bytes."
            )
        byteorder = self._archive.read(self._members["byteorder"]) if "byteorder" in self._members else b"little"
        self._order = _ORDER.get(byteorder, "<")
        try:
            return self._interpret(self._archive.read(index))
        except (_Malformed, IndexError, KeyError, StopIteration, TypeError, ValueError, RecursionError) as error:
            raise CheckpointDamaged(
                f"{self._path} is damaged or not a file of weights ({error}). Use a checkpoint of its run."
            ) from None

    def _member(self, name: str) -> zipfile.ZipInfo:
        info = self._members.get(name)
        if info is None:
            raise CheckpointDamaged(
                f"{self._path} is not a file written by torch.save (no {name}). Use a checkpoint of its run."
            )
        return info

    # --- interpreting the pickle

    def _interpret(self, pickled: bytes) -> Any:
        stack: list[Any] = []
        memo: dict[Any, Any] = {}
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name in ("GLOBAL", "INST"):
                self._resolve_global(str(argument))
        for opcode, argument, _ in pickletools.genops(pickled):
            name = opcode.name
            if name in _CONSTANTS:
                stack.append(_CONSTANTS[name]())
            elif name in _LITERALS:
                stack.append(argument)
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name in _TUPLES:
                count = _TUPLES[name]
                items = tuple(stack[len(stack) - count :])
                del stack[len(stack) - count :]
                stack.append(items)
            elif name == "TUPLE":
                stack.append(tuple(_pop_to_mark(stack)))
            elif name in ("APPEND", "APPENDS"):
                items = tuple(_pop_to_mark(stack)) if name == "APPENDS" else (stack.pop(),)
                _expect_type(list, stack[-1]).extend(items)
            elif name in ("SETITEM", "SETITEMS"):
                pairs = _pop_to_mark(stack) if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
                _expect_type(dict, stack[-1]).update(zip(pairs[::2], pairs[1::2], strict=True))
            elif name == "GLOBAL":
                stack.append(self._resolve_global(str(argument)))
            elif name == "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                stack.append(self._resolve_global(f"{module} {attribute}"))
            elif name == "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(self._call(_expect_type(_Function, function), _expect_type(tuple, arguments)))
            elif name == "BINPERSID":
                stack.append(_storage(stack.pop()))
            elif name == "BUILD":
                stack.pop()  # metadata of a state dict, not weights
                _expect_type(dict, stack[-1])
            elif name == "STOP":
                return stack.pop()
            elif name not in ("PROTO", "FRAME"):
                raise _Malformed(f"its index has the opcode {name}")
        raise _Malformed("its index is truncated")

    def _resolve_global(self, name: str) -> _Function:
        module, _, attribute = name.partition(" ")
        if name not in (_DICT, _TENSOR, _PARAMETER) and not (module == "torch" and attribute in _DTYPES):
            raise BadInput(
                f"{self._path} contains more than weights ({name!r}): loading it could run code, so it is rejected."
            )
        return _Function(name)

    def _call(self, function: _Function, arguments: tuple[Any, ...]) -> Any:
        if function.name == _DICT:
            return dict(*arguments)
        if function.name == _PARAMETER:
            return arguments[0]
        if function.name != _TENSOR:
            raise _Malformed(f"its index calls {function.name}")
        storage, offset, shape, strides, *_ = arguments
        return self._tensor(_expect_type(_Storage, storage), offset, shape, strides)

    def _tensor(self, storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        if len(shape) != len(strides) or min((*shape, *strides, offset)) < 0 or math.prod(shape) > storage.length:
            raise _Malformed("a tensor's shape is invalid")
        flat = self._array(storage)
        last = offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        if 0 not in shape and last >= len(flat):
            raise _Malformed("a tensor reaches beyond its storage")
        if 0 in shape:
            return np.empty(shape, flat.dtype)
        self._bytes_left -= math.prod(shape) * flat.itemsize
        if self._bytes_left < 0:
            raise _Malformed(f"its tensors have more than {MAX_SHARING} times the bytes of the file")
        view = np.lib.stride_tricks.as_strided(flat[offset:], shape, [stride * flat.itemsize for stride in strides])
        return np.asarray(view, order="C")

    def _array(self, storage: _Storage) -> npt.NDArray[Any]:
        """Return the content of a storage; tensors that share it are views of one array."""
        if storage not in self._storages:
            kind = _DTYPES[storage.kind].newbyteorder(self._order)
            info = self._member(f"data/{storage.key}")
            if info.file_size != storage.length * kind.itemsize:
                expected = storage.length * kind.itemsize
                raise _Malformed(f"{info.filename} has {info.file_size} bytes; expected {expected}")
            content = np.frombuffer(bytearray(self._archive.read(info)), kind)
            self._storages[storage] = content.astype(kind.newbyteorder("="), copy=False)
        return self._storages[storage]


def _pop_to_mark(stack: list[Any]) -> list[Any]:
    start = next(index for index in reversed(range(len(stack))) if isinstance(stack[index], _Mark))
    items = stack[start + 1 :]
    del stack[start:]
    return items


def _storage(persistent_id: Any) -> _Storage:
    kind, function, key, _, length = _expect_type(tuple, persistent_id)
    if kind != "storage":
        raise _Malformed("it refers to something that is not a storage")
    return _Storage(
        _expect_type(_Function, function).name.partition(" ")[2], _expect_type(str, key), _expect_type(int, length)
    )


def _expect_type(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise _Malformed(f"its index has a {type(value).__name__} where a {kind.__name__} is expected")
    return value


_CONSTANTS: dict[str, Callable[[], Any]] = {
    "MARK": _Mark,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
}
_LITERALS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
