"""Builds what a repository holds (checkpoint, settings, evaluation, video, model card) and commits it to the Hub."""

from __future__ import annotations

import json
import os
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic import __version__
from mosaic.base.eval_summary import EvalSummaryInvalid, read_eval_summary
from mosaic.base.journal import EventSink
from mosaic.base.secret_store import find_secret
from mosaic.contracts.errors import BadInput, CheckpointDamaged, MissingExtra, MosaicError
from mosaic.contracts.events import HubPushed
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.views import EvaluationSummary
from mosaic.features.hub.core import (
    CARD_FILE,
    CHECKPOINT_FILES,
    CONFIG_FILE,
    DESCRIPTION_FILE,
    EVALUATION_FILE,
    MODEL_SUFFIX,
    VIDEO_FILE,
    HashedFile,
    PolicyDescription,
    PushRequest,
    PushResult,
    PushState,
    find_model_file,
)

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi, ModelCardData

# --- Access to the Hub with a time limit, and its errors in one sentence.


TIMEOUT_S = 60.0
"""How long the Hub may take to answer a request."""
_LOGIN_HINT = "Set HF_TOKEN to a token with write access, or log in with: hf auth login"
_NETWORK_MODULES = ("httpx", "httpx2", "requests", "urllib3", "hf_xet")
_REPO_PATTERN = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*", re.ASCII)


OnProgress = Callable[[int, int], None]
"""Takes the bytes transferred so far and their total."""


@contextmanager
def hub_session(repo: str, timeout_s: float, is_push: bool = False) -> Iterator[HfApi]:
    """Yields the Hub's API, and turns its errors into a MosaicError."""
    if not _REPO_PATTERN.fullmatch(repo):
        raise BadInput(f"{repo!r} is not a valid repository name; expected OWNER/NAME.")
    for variable in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ.setdefault(variable, "1")  # read when the library is imported
    try:
        from huggingface_hub import HfApi, close_session, get_session
        from huggingface_hub.utils.logging import set_verbosity_error
    except ImportError as error:
        raise MissingExtra(f"The Hugging Face Hub needs {error.name}: pip install 'mosaic-rl[hub]'.") from None
    set_verbosity_error()  # type: ignore[no-untyped-call]
    # Without a token of ours, the library looks where `hf auth login` stored one.
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=find_secret("hf_token"), library_name="mosaic-rl")
    _limit_time(get_session(), timeout_s)
    try:
        yield api
    except MosaicError:
        raise
    except Exception as error:
        problem = explain_hub_error(error, repo, api.endpoint, timeout_s, is_push)
        if problem is None:
            raise
        raise problem from error
    finally:
        close_session()


def _limit_time(session: Any, timeout_s: float) -> None:
    """Limits every request: by default the library waits without a limit, or tries again several times."""
    unanswered_since: float | None = None

    def on_request(request: Any) -> None:
        nonlocal unanswered_since
        if unanswered_since is not None and time.monotonic() - unanswered_since >= timeout_s:
            raise TimeoutError  # unlike the library's own, which makes it try again
        unanswered_since = unanswered_since or time.monotonic()
        request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), timeout_s)

    def on_response(_: Any) -> None:
        nonlocal unanswered_since
        unanswered_since = None

    hooks = session.event_hooks
    session.event_hooks = {"request": [*hooks["request"], on_request], "response": [*hooks["response"], on_response]}


def explain_hub_error(
    error: BaseException, repo: str, endpoint: str, timeout_s: float, is_push: bool
) -> MosaicError | None:
    """Turns an error of the Hub or the network into one sentence; None for a bug, which shows its traceback."""
    chain = list(_cause_chain(error))
    for one in chain:
        status = getattr(getattr(one, "response", None), "status_code", None)
        if isinstance(status, int):
            server_message = " ".join(str(getattr(one, "server_message", None) or "").split())[:200].rstrip(".")
            return _error_for_status(status, f" ({server_message})" if server_message else "", repo, endpoint, is_push)
    for one in chain:
        kind = type(one)
        if kind.__name__ in ("HFValidationError", "HfUriError"):
            return BadInput(f"{repo!r} is not a valid repository name; expected OWNER/NAME.")
        if kind.__name__ == "OfflineModeIsEnabled":
            return MosaicError("HF_HUB_OFFLINE is set, so the Hub is not contacted. Unset it and try again.")
        if isinstance(one, TimeoutError) or kind.__name__.endswith("Timeout"):
            return MosaicError(f"{endpoint} did not answer within {timeout_s:.0f} seconds. Try again later.")
        if kind.__module__.partition(".")[0] in _NETWORK_MODULES or isinstance(one, ConnectionError):
            return MosaicError(
                f"{endpoint} cannot be reached ({_first_line(one)}). Check the network and HF_ENDPOINT, and try again."
            )
    for one in chain:
        if isinstance(one, OSError):
            return MosaicError(f"{one.strerror or one}.")
        if isinstance(one, (ValueError, RuntimeError)):
            return MosaicError(f"{endpoint} refused the request: {_first_line(one)}")
    return None


def _error_for_status(status: int, details: str, repo: str, endpoint: str, is_push: bool) -> MosaicError:
    verb = "write to" if is_push else "read"
    known = {
        401: BadInput(f"{endpoint} does not accept the token, or there is none (401){details}. {_LOGIN_HINT}"),
        403: BadInput(f"The token may not {verb} {repo} (403){details}. {_LOGIN_HINT}"),
        404: BadInput(f"{endpoint} has no model {repo} in that revision, or the token may not see it (404)."),
        409: MosaicError(f"{repo} was changed by another client at the same time ({status}){details}. Try again."),
        429: MosaicError(f"{endpoint} received too many requests (429). Try again in a few minutes."),
        500: MosaicError(f"{endpoint} has an internal problem ({status}){details}. Try again later."),
    }
    fallback = MosaicError(f"{endpoint} refused {repo} ({status}){details}.")
    return known.get(500 if status > 500 else 409 if status == 412 else status, fallback)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _cause_chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


# --- Builds what a repository holds (checkpoint, settings, evaluation, video, model card) and commits it to the Hub.


_LOCAL_KEYS = {"policy_path", "videos", "tensorboard_dir"}
"""Entries of an evaluation that name files of this machine."""
_STATISTICS = {
    "std_return": "standard deviation",
    "median_return": "median",
    "iqm": "interquartile mean",
    "min_return": "minimum",
    "max_return": "maximum",
}


@dataclass(frozen=True)
class HubBundle:
    description: PolicyDescription
    files: dict[str, CommitOperationAdd]
    """By path in the repository."""
    omissions: tuple[str, ...]
    """A sentence for each part that is missing."""

    @property
    def size_bytes(self) -> int:
        return sum(addition.upload_info.size for addition in self.files.values())


def push(request: PushRequest, on_progress: OnProgress = lambda *_: None, timeout_s: float = TIMEOUT_S) -> PushResult:
    """Commits the policy to its repository, which is created if it does not exist, and records that in the run."""
    with hub_session(request.repo, timeout_s, is_push=True) as api:
        from huggingface_hub import CommitOperationDelete

        bundle = build_bundle(request)
        # Without --private, the default of the organization applies.
        repo = api.create_repo(request.repo, private=request.is_private or None, exist_ok=True).repo_id
        present = [entry.rfilename for entry in api.model_info(repo).siblings or ()]
        policy, total, done = bundle.description, bundle.size_bytes, 0
        # One by one, so that progress can be shown; `upload_folder` reports none and may commit in several parts.
        for addition in bundle.files.values():
            on_progress(done, total)
            api.preupload_lfs_files(repo, [addition], num_threads=1, free_memory=False)
            done += addition.upload_info.size
        deletions = [CommitOperationDelete(name) for name in _outdated_files(present, bundle)]
        message = f"{policy.algo} on {policy.env_id}, step {policy.step}"
        commit = api.create_commit(repo, [*deletions, *bundle.files.values()], commit_message=message).oid
        on_progress(total, total)
        url = f"{api.endpoint}/{repo}"
    PushState(state="pushed", repo=repo, url=url, commit=commit, step=policy.step).write(request.folder)
    return PushResult(repo, url, commit, policy.step, sorted(bundle.files), total, list(bundle.omissions))


def push_after_training(folder: RunFolder, repo: str, outcome: str | None, emit_event: EventSink) -> None:
    """Pushes the policy of a run that has succeeded. Never raises: a failure becomes a warning of the run."""
    if outcome != "succeeded":
        return
    try:
        result = push(PushRequest(repo, folder, folder.last_checkpoint.resolve()))
    except Exception as error:
        traceback.print_exc()  # to the sidecar's log
        problem = str(error) if isinstance(error, MosaicError) else f"{type(error).__name__}: {error}."
        PushState(state="failed", repo=repo, problem=problem).write(folder)
        retry = f"Try again: mosaic push {folder.run_id} --repo {repo if '/' in repo else f'OWNER/{repo}'}"
        emit_event("warning", text=f"The model was not uploaded. {problem} {retry}", code="hub_failed")
        return
    emit_event(HubPushed.KIND, repo=result.repo, url=result.url, commit=result.commit, step=result.step)


def _outdated_files(present: list[str], bundle: HubBundle) -> list[str]:
    """Lists what an earlier push left and this one does not replace; nothing in a repository that we did not create."""
    if DESCRIPTION_FILE not in present:
        return []
    return [
        name
        for name in present
        if name not in bundle.files
        and (
            name in (EVALUATION_FILE, VIDEO_FILE)
            or name.startswith("checkpoints/")
            or (name.endswith(MODEL_SUFFIX) and "/" not in name)
        )
    ]


def build_bundle(request: PushRequest) -> HubBundle:
    """Checks everything before anything is sent: a damaged checkpoint is refused."""
    from huggingface_hub import CommitOperationAdd

    folder, checkpoint, evaluation = request.folder, request.checkpoint, request.evaluation
    manifest = _load_manifest(checkpoint)
    step: int = manifest["step"]
    settings = dict(manifest["facts"].get("config") or {})
    files: dict[str, CommitOperationAdd] = {}
    omissions = []

    def add(name: str, content: Path | bytes) -> None:
        files[name] = CommitOperationAdd(name, content)

    for name in CHECKPOINT_FILES:
        add(f"checkpoints/{step}/{name}", checkpoint / name)
    model = request.model or find_model_file(folder, checkpoint)
    if model is not None:
        add(model.name, model)
    else:
        omissions.append(f"No {MODEL_SUFFIX} file is included: there is none of step {step}.")
    summary = _load_evaluation(evaluation or folder, step)
    if summary is not None:
        add(EVALUATION_FILE, _json_bytes(summary.model_dump(mode="json", exclude=_LOCAL_KEYS)))
    else:
        omissions.append("The card has no evaluation of this checkpoint. Evaluate it first: mosaic eval RUN")
    video = _find_video(evaluation, folder) if request.has_video else None
    if video is not None:
        add(VIDEO_FILE, video)
    try:
        unhashed = PolicyDescription(
            worker=manifest.get("worker") or "cleanrl",
            algo=manifest["facts"]["algorithm"],
            env_id=settings["env_id"],
            seed=settings.get("seed"),
            total_timesteps=settings.get("total_timesteps"),
            step=step,
            score=manifest.get("score"),
            run_id=folder.run_id,
            settings=settings,
            versions=manifest.get("versions") or {},
            model=None if model is None else model.name,
            files={},
        )
    except (KeyError, ValueError) as error:
        raise BadInput(
            f"The manifest of checkpoint {checkpoint} does not describe its policy ({error}); it cannot be pushed."
        ) from None
    add(CONFIG_FILE, _json_bytes(unhashed.to_payload()))
    hashed = {name: addition.upload_info for name, addition in files.items()}
    hashes = {name: HashedFile(size_bytes=info.size, sha256=info.sha256.hex()) for name, info in hashed.items()}
    description = unhashed.model_copy(update={"files": hashes})
    add(DESCRIPTION_FILE, _json_bytes(description.model_dump(mode="json")))
    add(CARD_FILE, model_card(description, summary, request.repo, has_video=video is not None).encode())
    return HubBundle(description, files, tuple(omissions))


def _load_manifest(checkpoint: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))
        for name, expected in manifest["files"].items():
            if HashedFile.of(checkpoint / name) != HashedFile(**expected):
                raise CheckpointDamaged(
                    f"Checkpoint {checkpoint} is damaged ({name}: hash mismatch). Push another one."
                )
        if not isinstance(manifest["facts"], dict) or not isinstance(manifest["step"], int):
            raise ValueError("the manifest lacks `facts` or `step`")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamaged(f"Checkpoint {checkpoint} cannot be read ({error}). Push another one.") from None
    return manifest


def _load_evaluation(folder: RunFolder, step: int) -> EvaluationSummary | None:
    try:
        summary = read_eval_summary(folder.eval_summary)
    except EvalSummaryInvalid:
        return None
    is_usable = summary is not None and summary.avg_return is not None and summary.checkpoint_step in (None, step)
    return summary if is_usable else None


def _find_video(evaluation: RunFolder | None, folder: RunFolder) -> Path | None:
    """Returns the first episode of the evaluation, else the newest video of the run itself."""
    recorded = sorted(evaluation.videos.rglob("*.mp4")) if evaluation is not None else []
    if recorded:
        return recorded[0]
    return max(folder.videos.rglob("*.mp4"), key=lambda path: path.stat().st_mtime, default=None)


def _json_bytes(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


def model_card(policy: PolicyDescription, evaluation: EvaluationSummary | None, repo: str, has_video: bool) -> str:
    """Returns README.md: metadata that the Hub's search and leaderboards read, then text for people."""
    steps = "" if policy.step is None else f", saved after {policy.step:,} environment steps"
    usage = (
        f"## Usage\n\n```bash\npip install 'mosaic-rl[train,hub]'\nmosaic pull {repo}\nmosaic eval last\n```\n\n"
        "The weights are stored as `safetensors`, everything else as JSON or plain arrays; loading runs no code of "
        "this repository.\n"
    )
    if policy.model is not None:
        usage += f"`{policy.model}` holds the same weights in the format that CleanRL's scripts read.\n"
    settings = [(f"`{name}`", f"`{json.dumps(value)}`") for name, value in sorted(policy.settings.items())]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(policy.versions.items()))
    parts = [
        f"---\n{_card_metadata(policy, evaluation).to_yaml()}\n---\n",
        f"# {policy.algo} on {policy.env_id}\n",
        f"A policy for `{policy.env_id}`, trained with `{policy.algo}` in MOSAIC {__version__}{steps}.\n",
        _results_section(policy, evaluation),
        f"[A recorded episode]({VIDEO_FILE})\n" if has_video else "",
        usage,
        f"## Settings\n\n{_table(settings, ('setting', 'value'))}" if settings else "",
        f"Trained with {versions}.\n" if versions else "",
    ]
    return "\n".join(part for part in parts if part)


def _card_metadata(policy: PolicyDescription, evaluation: EvaluationSummary | None) -> ModelCardData:
    from huggingface_hub import EvalResult, ModelCardData

    tags = [policy.env_id, policy.algo, "deep-reinforcement-learning", "reinforcement-learning", "mosaic-rl"]
    mean, deviation = (policy.score, None) if evaluation is None else (evaluation.avg_return, evaluation.std_return)
    result = EvalResult(
        task_type="reinforcement-learning",
        task_name="reinforcement-learning",
        dataset_type=policy.env_id,
        dataset_name=policy.env_id,
        metric_type="mean_reward",
        # `499.20 +/- 2.40`, as the Hub's leaderboards read it.
        metric_value=f"{mean or 0.0:.2f}" + ("" if deviation is None else f" +/- {deviation:.2f}"),
        metric_name="mean_reward" if evaluation is not None else f"mean_reward of {policy.scored_episodes}",
        verified=False,
    )
    return ModelCardData(
        library_name="mosaic-rl",
        pipeline_tag="reinforcement-learning",
        tags=tags,
        model_name=policy.algo,
        eval_results=None if mean is None else [result],
    )


def _results_section(policy: PolicyDescription, evaluation: EvaluationSummary | None) -> str:
    if evaluation is None:
        if policy.score is None:
            return ""
        return f"## Results\n\nMean return of {policy.scored_episodes}: {policy.score:.2f}. Not evaluated afterwards.\n"
    mean = f"{evaluation.avg_return:.2f}"
    if evaluation.ci95 is not None:
        mean += f" (Student's 95 % confidence interval: {evaluation.ci95[0]:.2f} to {evaluation.ci95[1]:.2f})"
    statistics = [(label, getattr(evaluation, name)) for name, label in _STATISTICS.items()]
    rows = [("episodes", str(evaluation.episodes)), ("mean return", mean)]
    rows += [(label, f"{value:.2f}") for label, value in statistics if value is not None]
    actions = "deterministic actions" if evaluation.deterministic else "sampled actions"
    return f"## Results\n\nEvaluated with {actions} on seeds that training did not use.\n\n{_table(rows, ('', ''))}"


def _table(rows: list[tuple[str, str]], headers: tuple[str, str]) -> str:
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    lines = [f"| {' | '.join(headers)} |", "|---|---|", *(f"| {' | '.join(row)} |" for row in cells)]
    return "\n".join(lines) + "\n"
