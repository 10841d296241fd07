"""F56: a trainer that lies writes no file outside of its clients' cache, and costs them one sentence."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.hostile_trainer import (
    CONFIG,
    JPEG,
    RUN,
    STATUS,
    STREAMS,
    TOKEN,
    HostileTrainer,
    fnmatching,
    json_reply,
    list_reply,
    run_reply,
    running_hostile_trainer,
    view,
)

from mosaic import connect as connect_api
from mosaic.cli.context import CliContext
from mosaic.cli.main import main
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadInput, BadReply, MosaicError, NotAllowed
from mosaic.contracts.views import MetricsCursor
from mosaic.trainer.client import file_transfer, trainer_client
from mosaic.trainer.client.remote_trainer import RemoteTrainer, connect_remote
from mosaic.trainer.client.trainer_client import TrainerClient

SERVICE = pb.DESCRIPTOR.services_by_name["Trainer"]
VERBS = {verb.name: verb.GetOptions().Extensions[pb.verb] for verb in SERVICE.methods}
HUGE = 10**30
DEEP = "[" * 100_000 + "]" * 100_000
ODD = "evil\x1b]0;title\x07\x1b[2J\u202egnp"
BAD_IDS = ["/tmp/absolute", "../../escaped", "..", ".", "", "a/b", "last", "a\0b", "x" * 65, "\x1b[2J", 5, None]
BAD_VIEWS: dict[str, Any] = {
    **{f"id {value!r}"[:20]: view(run_id=value) for value in BAD_IDS},
    "no object": [1],
    "no JSON": '{"run_id": ',
    "deep": f'{{"run_id": {DEEP}}}',
    "huge step": view(global_step=HUGE),
    "huge priority": view(priority=HUGE),
    "negative CPUs": view(cpus=-5),
    "time 1e300": view(submitted_at=1e300),
    "time NaN": view(submitted_at=math.nan),
    "unknown outcome": view(outcome="hibernated"),
}
COMMANDS = [
    ["runs"], ["show", RUN], ["metrics", RUN], ["logs", RUN], ["config", RUN], ["disk"], ["wandb", "status"],
    ["daemon", "status"], ["export", RUN, "--csv", "out.csv"], ["export", RUN, "--zip", "out.zip"], ["note", RUN],
    ["replay", RUN], ["eval", RUN], ["prune", "--videos", "--dry-run"], ["resume", RUN], ["actors"],
    ["logs", RUN, "--search", "x"], ["logs", RUN, "--lines", "3", "--json"], ["watch", RUN, "--save", "x.mp4"],
    ["restore"], ["plot", RUN, "--out", "x.png"], ["export", RUN, "--png", "out.png"],
    ["play", "CartPole-v1", "--actor", f"policy:{RUN}"], ["delete", RUN, "--yes"], ["tag", RUN, "a"], ["leaderboard"],
    ["experiments"],    ["cancel", RUN], ["resubmit", RUN], ["compare", RUN, RUN], ["diff", RUN, RUN],
]  # fmt: skip


@pytest.fixture
def liar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostileTrainer]:
    for folder in ("home", "work", "var"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    monkeypatch.setenv("MOSAIC_VAR", str(tmp_path / "var"))
    monkeypatch.chdir(tmp_path / "work")
    with running_hostile_trainer() as trainer:
        monkeypatch.setenv("MOSAIC_TRAINER", trainer.address)
        monkeypatch.setenv("MOSAIC_TOKEN", TOKEN)
        yield trainer


@pytest.fixture
def client(liar: HostileTrainer) -> Iterator[TrainerClient]:
    with connect_remote(RemoteTrainer(liar.address, TOKEN)) as connected:
        yield connected


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "home" / "cache" / "mosaic" / "files"


def command(*arguments: str) -> tuple[int, str]:
    """A command in this process: its exit code, and what it printed."""
    printed = io.BytesIO()
    with io.TextIOWrapper(printed, "utf-8", write_through=True) as text:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            code = main(list(arguments), CliContext())
        return code, printed.getvalue().decode()


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def assert_one_sentence(text: str) -> None:
    assert "Traceback" not in text, text
    assert len(text) < 3000, text
    assert not set(text) & set("\x1b\x07\u202e"), text


def answering(reply: Any) -> Callable[[Any], Any]:
    return lambda _: reply


def one_file(**fields: Any) -> Callable[[Any], Any]:
    """The only file of the run, also where another was asked for."""
    return lambda _: pb.FilesReply(files=[pb.RunFile(**{"size_bytes": 4, "modified_at": 1.7e9, **fields})])


def matching_file(**fields: Any) -> Callable[[Any], Any]:
    return lambda request: fnmatching(request, pb.RunFile(**{"size_bytes": 4, "modified_at": 1.7e9, **fields}))


# --- ids, numbers and texts


@pytest.mark.parametrize("bad", BAD_VIEWS.values(), ids=BAD_VIEWS)
def test_a_run_that_cannot_be_is_refused_by_every_command(
    liar: HostileTrainer, client: TrainerClient, tmp_path: Path, bad: Any
) -> None:
    """F56: in a list, by its id and by the API."""
    text = bad if isinstance(bad, str) else json.dumps(bad)
    liar.lies = {
        "GetRun": lambda _: pb.RunReply(view_json=text),
        "ListRuns": lambda _: list_reply(text),
        "AnnotateRun": lambda _: pb.RunReply(view_json=text),
        "CancelRun": lambda _: pb.RunReply(view_json=text),
    }
    before = files_below(tmp_path)
    for call in (lambda: client.get_run("last"), lambda: client.runs(), lambda: client.cancel_run("last")):
        with pytest.raises(BadReply, match="sent a reply that cannot be used"):
            call()
    for arguments in (["runs"], ["show", RUN], ["cancel", RUN], ["export", RUN, "--zip", "out.zip"]):
        code, text_shown = command(*arguments)
        assert (code, "sent a reply that cannot be used" in text_shown) == (1, True), text_shown
        assert_one_sentence(text_shown)
    with connect_api(trainer=liar.address, token=TOKEN) as api, pytest.raises(BadReply):
        api.runs()
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("arguments", COMMANDS, ids=[" ".join(words[:2]) for words in COMMANDS])
def test_odd_texts_of_a_trainer_are_shown_as_text(
    liar: HostileTrainer, tmp_path: Path, arguments: list[str], record_property: Callable[[str, object], None]
) -> None:
    """F56: and what answers no call at all ends in a sentence."""
    texts = dict.fromkeys(("run_name", "algo", "env_id", "notes", "reason", "problem", "run_dir"), ODD)
    odd = view(**texts, group=f"../../{ODD}", tags=[ODD], warnings=[ODD])
    honest = {"GetRun": lambda _: pb.RunReply(view_json=json.dumps(odd)), "ListRuns": lambda _: list_reply(odd)}
    replies: dict[str, list[Any]] = {
        "GetConfig": [DEEP, "[]", "{}", json.dumps({**CONFIG, "artifacts": {"video": [1]}}), json.dumps({"a": HUGE})],
        "ReadSettings": [DEEP, "5", '{"settings": 5}', '{"machine": {"cpus": 1e999}}'],
        "GetStatus": [DEEP, "[]", json.dumps({**STATUS, "slots": {"gpus": HUGE}})],
    }
    cases: list[dict[str, Any]] = [{}]
    cases += [{verb: lambda _, text=text: json_reply(text)} for verb, some in replies.items() for text in some]
    for verb in ("ReadEpisodes", "ReadEvaluations", "ReadWandb", "ReadDiskUsage", "ListTrash"):
        cases += [{verb: lambda _, text=text: iter([json_reply(text)])} for text in (DEEP, "[5]", '{"run_id": "../x"}')]
    cases.append({"ReadMetrics": lambda _: iter([pb.MetricsReply(series=[pb.MetricSeries(tag=ODD, steps=[1, 2])])])})
    cases.append({"ReadMetrics": lambda _: iter([])})
    record_property("tries", len(cases))
    for lies in cases:
        liar.lies = honest | lies
        assert_one_sentence(command(*arguments)[1])
    assert files_below(tmp_path / "home") == set()
    assert files_below(tmp_path / "work") <= {"out.csv", "out.zip"}


def test_what_is_asked_of_workers_is_decoded(liar: HostileTrainer, client: TrainerClient) -> None:
    """F56: answers of their checkers come through the trainer."""
    calls: list[Callable[[], object]] = [
        lambda: client.environments("cleanrl"),
        lambda: client.environment("CartPole-v1"),
        lambda: client.inspect_checkpoint("cleanrl", "/x"),
        lambda: client.check(CONFIG),
        client.get_status,
        lambda: client.read_settings(RUN),
    ]
    for text in (
        DEEP,
        "5",
        '{"environments": 5, "environment": 5, "checkpoint": 5, "summary": 5, "pid": "x", "settings": 5}',
    ):
        reply = json_reply(text)
        liar.lies = dict.fromkeys(("AskWorker", "CheckRun", "GetStatus", "ReadSettings"), answering(reply))
        for call in calls:
            with pytest.raises(BadReply):
                call()


@pytest.mark.parametrize("verb", [name for name, facts in VERBS.items() if facts.contract])
def test_every_answer_with_a_contract_is_decoded(liar: HostileTrainer, client: TrainerClient, verb: str) -> None:
    """F56: that of a new verb, too."""
    method = getattr(client, re.sub(r"(?<!^)(?=[A-Z])", "_", verb).lower())
    needed = [name for name, given in inspect.signature(method).parameters.items() if given.default is given.empty]
    values = dict.fromkeys(needed, 1 if verb in ("SetCap", "TrustWorkspace") else RUN)
    output = SERVICE.methods_by_name[verb].output_type
    [content] = output.fields
    for text in (DEEP, "5", "[5]", "{", '{"run_id": "../../x", "pid": "x", "summary": 5, "settings": 5}'):
        reply = getattr(pb, output.name)(**{content.name: [text] if content.is_repeated else text})
        liar.lies = {verb: answering([reply] if verb in STREAMS else reply)}
        with pytest.raises(BadReply):
            list(method(**values))
    assert set(liar.calls) == {verb}


@pytest.mark.parametrize("page", ["same", "too many"])
def test_a_list_of_runs_ends(
    liar: HostileTrainer, client: TrainerClient, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    """F56: also where every part of it is full."""
    monkeypatch.setattr(trainer_client, "MAX_RUNS", 1000)
    number = iter(range(10**9, 0, -1) if page == "too many" else range(1, 10**9))

    def answer(request: pb.ListRequest) -> pb.ListReply:
        ids = [RUN if page == "same" else f"R{next(number):010}" for _ in range(request.limit)]
        return list_reply(*(view(run_id=run_id) for run_id in ids))

    liar.lies = {"ListRuns": answer}
    with pytest.raises(BadReply, match=r"repeats itself|more than 1,000 runs"):
        client.runs()


def test_a_stream_that_does_not_end_is_cut(
    liar: HostileTrainer, client: TrainerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F56: of empty messages, too; a file is read no further than its stated size."""
    monkeypatch.setattr("mosaic.trainer.client.daemon_channel.DaemonChannel.stream.__defaults__", (False, 100_000))

    def endless(reply: Any) -> Callable[[Any], Iterator[Any]]:
        def answer(_: Any) -> Iterator[Any]:
            while True:
                yield reply

        return answer

    liar.lies = {
        "ReadMetrics": endless(pb.MetricsReply()),
        "ReadEpisodes": endless(json_reply("[]")),
        "ReadFile": endless(pb.FileReply(data=b"x" * 1000)),
    }
    with pytest.raises(BadReply, match="has more than 100,000 bytes"):
        client.metrics_after(RUN, MetricsCursor())
    with pytest.raises(BadReply, match="has more than 100,000 bytes"):
        list(client.episodes(RUN))
    monkeypatch.setattr(trainer_client, "MAX_SMALL_FILE_BYTES", 100_000)
    assert client.read_json(RUN, "analytics.json") is None
    with pytest.raises(BadReply, match="is larger than the 4 bytes that its trainer stated"):
        client.open_file(RUN, "videos/0.mp4")


# --- files


NAMES = ["/tmp/absolute", "../escaped", "videos/../../../escaped", "..", ".", "", "a\0b", "videos/./0.mp4", "other.mp4"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_copied_into_the_cache_only(
    liar: HostileTrainer, client: TrainerClient, tmp_path: Path, name: str
) -> None:
    """F56: whatever its name."""
    liar.lies = {"ListFiles": one_file(name=name)}
    before = files_below(tmp_path)
    with pytest.raises(MosaicError):
        client.open_file(RUN, "videos/0.mp4")
    with pytest.raises(MosaicError):
        file_transfer.copy_event_files(client, RUN, "tensorboard")
    code, text = command("export", RUN, "--zip", "out.zip")
    assert_one_sentence(text)
    assert name == "other.mp4" or code == 1
    assert files_below(tmp_path) - before <= {"work/out.zip"}


@pytest.mark.parametrize("run_id", [value for value in BAD_IDS if isinstance(value, str)])
def test_no_id_leads_out_of_the_cache(client: TrainerClient, tmp_path: Path, run_id: str) -> None:
    """F56: where a caller passes on what it was told."""
    before = files_below(tmp_path)
    with pytest.raises(ValueError, match="expected up to 64 letters"):
        file_transfer.download(client, run_id, [trainer_client.RunFile("authorized_keys", 4, 1.0)])
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("folder", ["../../../escaped", "/tmp/escaped"])
def test_event_files_stay_in_the_cache(
    liar: HostileTrainer, client: TrainerClient, tmp_path: Path, folder: str
) -> None:
    """F56: wherever the config says that they are."""
    before = set(tmp_path.rglob("*"))
    with pytest.raises(BadInput):
        file_transfer.copy_event_files(client, RUN, folder)
    assert not [path for path in set(tmp_path.rglob("*")) - before if "escaped" in path.name]


@pytest.mark.parametrize("target", ["../../../escaped", "/etc/passwd", "0.mp4", "a/../../../escaped", ""])
def test_a_link_leads_nowhere_else(liar: HostileTrainer, client: TrainerClient, tmp_path: Path, target: str) -> None:
    """F56: nor in a circle; and no zip contains one that leads out of its run."""
    liar.lies = {"ListFiles": matching_file(name="videos/0.mp4", link_target=target)}
    before = files_below(tmp_path)
    if target:
        with pytest.raises(MosaicError, match=r"link|has no file"):
            client.open_file(RUN, "videos/0.mp4")
        assert files_below(tmp_path) == before
    code, text = command("export", RUN, "--zip", "out.zip")
    assert code == 0, text
    import zipfile

    with zipfile.ZipFile(tmp_path / "work" / "out.zip") as archive:
        links = [archive.read(entry).decode() for entry in archive.infolist() if entry.external_attr >> 28 == 0xA]
    assert links == (["0.mp4"] if target == "0.mp4" else [])


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"size_bytes": -1}, "has -1 bytes"),
        ({"size_bytes": 1 << 62}, "at most 20,000 with"),
        ({"size_bytes": 3}, "is larger than the 3 bytes"),
    ],
)
def test_sizes_are_limited(
    liar: HostileTrainer, client: TrainerClient, cache: Path, fields: dict[str, Any], problem: str
) -> None:
    """F56: what is stated, and what is sent."""
    liar.lies = {"ListFiles": matching_file(name="videos/0.mp4", **fields)}
    with pytest.raises((BadReply, NotAllowed), match=problem):
        client.open_file(RUN, "videos/0.mp4")
    assert not cache.exists() or files_below(cache) == set()
    code, text = command("export", RUN, "--zip", "out.zip")
    assert (code != 0, problem in text) == (True, True), text
    assert not Path("out.zip").exists()


@pytest.mark.parametrize("at", [math.nan, math.inf, -1e300, 1e300, -1.0])
def test_times_of_files_are_any_number(liar: HostileTrainer, client: TrainerClient, at: float) -> None:
    """F56: they are copied nevertheless."""
    liar.lies = {"ListFiles": matching_file(name="videos/0.mp4", modified_at=at)}
    assert client.open_file(RUN, "videos/0.mp4").read_bytes() == b"film"
    assert command("export", RUN, "--zip", "out.zip")[0] == 0


def test_names_that_do_not_fit_a_file_system_are_refused(liar: HostileTrainer, client: TrainerClient) -> None:
    """F56: too long, or a folder where a file is."""
    liar.lies = {"ListFiles": matching_file(name="videos/" + "x" * 300)}
    with pytest.raises(NotAllowed, match="cannot be copied"):
        client.open_file(RUN, "videos")
    files = [pb.RunFile(name=name, size_bytes=4, modified_at=1.7e9) for name in ("videos/a", "videos/a/b")]
    liar.lies = {"ListFiles": lambda request: fnmatching(request, *files)}
    with pytest.raises(NotAllowed, match="cannot be copied"):
        client.open_file(RUN, "videos")


# --- frames, logs, errors


@pytest.mark.parametrize(
    ("image", "hud"),
    [
        (JPEG, {"rows": 0, "columns": 0, "envs": []}),
        (JPEG, {"rows": HUGE}),
        (JPEG, {"rows": -1}),
        (JPEG, {"envs": [{"env": 1}]}),
        (JPEG, {"envs": 5}),
        (JPEG, {"envs": {"a": 1}}),
        (b"<svg><image href='/dev/zero'/></svg>", {}),
        (b"GIF89a", {}),
        (JPEG, [1]),
        (JPEG, DEEP),
    ],
)
def test_frames_are_images_of_a_grid(liar: HostileTrainer, client: TrainerClient, image: bytes, hud: Any) -> None:
    """F56: of a stated number of environments, and of one format."""
    text = hud if isinstance(hud, str) else json.dumps(hud)
    liar.lies = {"StreamFrames": lambda _: iter([pb.FrameReply(state="connected", image=image, hud_json=text)])}
    with pytest.raises(BadReply):
        list(client.frames(RUN))


@pytest.mark.parametrize("event", ['{"seq": "x"}', "[5]", DEEP, '{"seq": 1, "kind": "progress", "run_id": "../../x"}'])
def test_events_are_decoded(liar: HostileTrainer, client: TrainerClient, event: str) -> None:
    """F56: one that is none ends the stream with a sentence."""
    liar.lies = {"WatchRuns": lambda _: iter([pb.EventBatch(cursor=1, events_json=[event])])}
    with pytest.raises(BadReply):
        list(client.watch())


@pytest.mark.parametrize(
    "name", ["SubmissionUncertain", "SystemExit", "ExportCancelled", "KeyboardInterrupt", "", "a: b"]
)
def test_errors_of_a_trainer_are_sentences(liar: HostileTrainer, name: str) -> None:
    """F56: whatever class it names."""

    def refuse(_: Any) -> Any:
        raise RuntimeError(f"{name}: {ODD}")

    liar.lies = {"GetRun": refuse, "ListRuns": refuse}
    code, text = command("show", RUN)
    assert code == 1, text
    assert_one_sentence(text)


def test_the_folders_of_a_remote_trainer_are_never_opened_here(
    liar: HostileTrainer, client: TrainerClient, tmp_path: Path
) -> None:
    """F56: a run_dir that exists on this machine is a path of the other one."""
    secret = tmp_path / "home" / "videos"
    secret.mkdir()
    (secret / "0.mp4").write_bytes(b"of this machine")
    liar.lies = {"GetRun": lambda _: run_reply(run_dir=str(tmp_path / "home"))}
    copied = client.open_file(RUN, "videos/0.mp4")
    assert copied.read_bytes() == b"film"
    assert os.path.commonpath([copied, tmp_path / "home" / "cache"]) == str(tmp_path / "home" / "cache")
