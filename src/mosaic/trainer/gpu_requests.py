"""What a run asks for in GPUs, and what it gets where it says nothing. Pure, but for the search for MPS."""

from __future__ import annotations

from collections.abc import Mapping

from mosaic.contracts.errors import refuse_key
from mosaic.contracts.options import value_at
from mosaic.contracts.payload import GpuRequest, Payload
from mosaic.contracts.views import VerdictSummary
from mosaic.trainer.gpus import DEFAULT_RUNS_PER_GPU, DEVICES_VARIABLE, has_mps
from mosaic.trainer.scheduler import Slots
from mosaic.workers import get_worker


def check_gpu_request(request: GpuRequest, count: int) -> None:
    """Refuse what a machine with this many GPUs can never give."""
    here = f"this machine has {count or 'none'}"
    if request.device is not None and (request.requested or 1) > 1:
        raise refuse_key("resources.gpus.device", "one GPU is named, but several are requested. Leave out one of both.")
    if request.device is not None and request.requested == 0:
        raise refuse_key("resources.gpus.device", "a GPU is named, but none is requested. Leave out one of both.")
    if not request.mandatory:
        return
    if request.device is not None and request.device >= count:
        known = f"Known: {', '.join(map(str, range(count)))}." if count else "Leave it out to run on the CPU."
        raise refuse_key("resources.gpus.device", f"there is no GPU {request.device}; {here}. {known}")
    if (request.requested or 0) > count:
        raise refuse_key(
            "resources.gpus.requested",
            f"{request.requested:g} requested, but {here}. Ask for {f'at most {count}' if count else '0'}; or let the "
            "config say that they are not mandatory.",
        )


def count_gpus(payload: Payload, summary: VerdictSummary, slots: Slots) -> float:
    """Return how many GPUs a run holds: those it asks for, else those that its worker says it gains from.

    On this machine no more than there are. A cluster may grow: there, what was asked for is waited for.
    """
    request = payload.resources.gpus
    if request.requested is not None and request.mandatory and not slots.are_gpus_numbered:
        return request.requested
    default = 1 if request.device is not None else summary.gpus or 0
    return min(default if request.requested is None else request.requested, slots.gpus)


def default_runs_per_gpu(payload: Payload) -> int:
    """Return how many runs of its group may share its GPU: by default several of a worker's own algorithms."""
    requested = payload.resources.gpus.runs_per_gpu
    if requested is not None:
        return requested
    is_shareable = payload.metadata.group is not None and not get_worker(payload.metadata.worker.id).has_own_command
    return DEFAULT_RUNS_PER_GPU if is_shareable and has_mps() else 1


def gpu_warnings(payload: Payload, slots: Slots, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning where a run computes on the CPU, and its submitter may think otherwise."""
    request, worker = payload.resources.gpus, payload.metadata.worker
    if slots.are_gpus_numbered and not slots.gpus and value_at(worker.config, "algo_params.cuda") is True:
        return ("cuda: this machine has no GPU, so the run is computed on the CPU.",)
    is_program = get_worker(worker.id).has_own_command and worker.config.get("attached") is not True
    is_silent = request.requested is request.device is None and DEVICES_VARIABLE not in environment
    if not (slots.gpus and is_program and is_silent):
        return ()
    return ("The program sees no GPU, as none was requested. To give it one: --gpus 1",)
