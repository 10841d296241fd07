"""What a file of weights says of itself. Nothing is unpickled: a pickle is only listened to."""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path
from typing import Any

from mosaic.contracts.errors import BadInput, CheckpointDamaged
from mosaic.contracts.folder import RunFolder
from mosaic.run import Checkpoint, last_good_checkpoint, load_checkpoint

MODEL_SUFFIX = ".cleanrl_model"
_WEIGHTS_ONLY = {"collections OrderedDict", "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"}
_LARGEST_PICKLE = 64 << 20


def find_checkpoint(path: str) -> Checkpoint:
    """The checkpoint that is meant by its own folder, by its run's folder, or by the model file of its run."""
    given = Path(path).expanduser()
    if (given / "manifest.json").exists():
        return load_checkpoint(given)
    folder = given
    if given.suffix == MODEL_SUFFIX:
        if not given.is_file():
            raise BadInput(f"There is no file {given}.")
        folder = given.absolute().parent.parent.parent
        if not (folder / "checkpoints").is_dir():
            raise BadInput(
                f"{given} stands alone; it is loaded from within its run's folder. Give a checkpoint folder."
            )
    if not (folder / "checkpoints").is_dir():
        raise BadInput(f"{given} is neither a checkpoint nor a run folder with checkpoints.")
    found = last_good_checkpoint(RunFolder(folder))
    if found is None:
        raise CheckpointDamaged(
            f"No good checkpoint under {folder / 'checkpoints'}. Train the run again, or resume it."
        )
    return found


def inspect(path: str) -> dict[str, Any]:
    """The metadata of a checkpoint, of a run's newest one, or of a .cleanrl_model file; refused where damaged."""
    given = Path(path).expanduser()
    if given.suffix == MODEL_SUFFIX and given.is_file():
        return _model(given)
    checkpoint = find_checkpoint(path)
    return {"kind": "checkpoint", **_facts(checkpoint), "weights": _shapes(checkpoint)}


def _facts(checkpoint: Checkpoint) -> dict[str, Any]:
    config = checkpoint.facts.get("config", {})
    return {
        "path": str(checkpoint.path),
        "run_id": checkpoint.manifest.get("run_id"),
        "step": checkpoint.step,
        "saved_at": checkpoint.manifest.get("saved_at"),
        "score": checkpoint.manifest.get("score"),
        "versions": checkpoint.manifest.get("versions"),
        "algo": checkpoint.facts.get("algorithm"),
        "env_id": config.get("env_id"),
        "seed": config.get("seed"),
        "config": config,
    }


def _shapes(checkpoint: Checkpoint) -> dict[str, list[int]]:
    return {name: list(array.shape) for name, array in checkpoint.weights.items()}


def _model(path: Path) -> dict[str, Any]:
    """Reads the names in its pickle, and refuses one that would run code."""
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
            if broken is not None:
                raise CheckpointDamaged(f"{path} is damaged ({broken}: wrong checksum). Use a checkpoint of its run.")
            member = next((info for info in archive.infolist() if info.filename.endswith("data.pkl")), None)
            if member is None or member.file_size > _LARGEST_PICKLE:
                raise CheckpointDamaged(f"{path} is no file that torch.save wrote. Use a checkpoint of its run.")
            names = _names(archive.read(member), path)
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
        raise CheckpointDamaged(f"{path} is damaged ({error}). Use a checkpoint of its run.") from None
    found: dict[str, Any] = {"kind": "cleanrl_model", "path": str(path), "weights": names}
    try:
        return {**_facts(find_checkpoint(str(path))), **found}
    except BadInput:
        return found | {"algo": path.stem, "env_id": None, "seed": None, "config": {}}


def _names(pickled: bytes, path: Path) -> list[str]:
    """The keys of the state dict, from the words of the pickle."""
    texts: list[str] = []
    keys: list[str] = []
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name in ("GLOBAL", "INST", "STACK_GLOBAL"):
            said = str(argument) if opcode.name != "STACK_GLOBAL" else " ".join(texts[-2:])
            if said not in _WEIGHTS_ONLY and not (said.startswith("torch ") and said.endswith("Storage")):
                raise BadInput(f"{path} holds more than weights ({said!r}): loading it could run code. It is refused.")
        elif isinstance(argument, str):
            texts.append(argument)
            if "." in argument and not argument.startswith("torch"):
                keys.append(argument)
    return list(dict.fromkeys(keys))
