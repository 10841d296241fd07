"""What is submitted to Slurm, and what the state of a job means for its run."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from mosaic.contracts.errors import BadInput
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.states import Attempt, Outcome, RunRecord, Stage
from mosaic.trainer import lifecycle as life
from mosaic.trainer.executors.slurm.job_events import STATE_TIMEOUT_S, SURVIVAL_S, JobAction, JobFacts, find_action
from mosaic.trainer.executors.slurm.job_files import JobFiles, JobOffer, SubmittedJob, TaskReport
from mosaic.trainer.executors.slurm.job_queue import (
    AttemptKey,
    Cluster,
    JobQueue,
    JobRequest,
    JobResources,
    Refusal,
    job_parameters,
    make_batches,
)
from mosaic.trainer.executors.slurm.settings import KNOWN_KEYS, SlurmSettings, parse_settings

AT = 100.0


def record(stage: Stage = Stage.STARTING, node: str = "", job: str = "7") -> RunRecord:
    attempt = Attempt(number=1, slot=1, started_at=1.0, executor="slurm", node=node, job=job)
    return RunRecord(run_id="R", worker="w", stage=stage, submitted_at=0, queued_at=0, attempts=(attempt,))


def act(run: RunRecord, facts: JobFacts) -> JobAction | None:
    return find_action(run, facts, AT, "Last words: none.")


def report(ended_by: str | None = None, refusal: str | None = None) -> TaskReport:
    return TaskReport(job_id="7", node="n1", ended_by=ended_by, refusal=refusal)


# --- settings


def test_settings_are_words_with_quotes_as_in_a_shell() -> None:
    settings = parse_settings(
        "partition=gpu time=90 max_jobs=5 setup='module load cuda' setup=true sbatch.licenses=a:1"
    )
    assert settings.parameters == {"partition": "gpu", "setup": ["module load cuda", "true"]}
    assert (settings.sbatch, settings.minutes, settings.max_jobs) == ({"licenses": "a:1"}, 90, 5)
    assert parse_settings("") == SlurmSettings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partitoin=gpu", "No setting 'partitoin' for Slurm. Did you mean 'partition'?"),
        ("partition", "'partition' is not a setting for Slurm; expected KEY=VALUE"),
        ("cpus_per_task=4", "CPUs, GPUs and memory are those of each run."),
        ("time=1:00", "The setting for Slurm time is '1:00'; expected a whole number of minutes above 0."),
        ("max_jobs=0", "expected a whole number above 0"),
        ("qos=a qos=b", "'qos' is given twice"),
        ("setup='x", "The settings for Slurm cannot be read: No closing quotation"),
    ],
)
def test_settings_that_are_unknown_or_malformed_are_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput) as error:
        parse_settings(text)
    assert message in str(error.value)


def test_an_unknown_cluster_is_refused() -> None:
    with pytest.raises(BadInput, match="MOSAIC_SLURM_CLUSTER is 'pbs'; expected one of slurm, local"):
        parse_settings("", "pbs")


def test_submitit_knows_every_setting() -> None:
    slurm = pytest.importorskip("submitit.slurm.slurm")
    assert set(KNOWN_KEYS) - {"max_jobs"} <= slurm.SlurmExecutor._valid_parameters()


@pytest.mark.parametrize(
    ("setting", "max_seconds", "minutes"),
    [("", None, 24 * 60), ("", 3600.0, 65), ("time=30", None, 30), ("time=30", 3600.0, 30), ("time=90", 3600.0, 65)],
)
def test_a_job_has_the_time_of_its_run_and_some_more(setting: str, max_seconds: float | None, minutes: int) -> None:
    assert parse_settings(setting).job_minutes(max_seconds) == minutes


# --- submissions


def request(run_id: str, group: str | None, cpus: int = 1, memory_mb: int | None = None) -> JobRequest:
    return JobRequest(AttemptKey(run_id, "1"), JobFiles(Path(run_id)), group, JobResources(cpus, 0, memory_mb, 60))


def test_runs_of_one_group_with_equal_resources_are_one_array() -> None:
    requests = [
        request("a", "g"), request("b", None), request("c", "g"), request("d", "g", cpus=2), request("e", None),
        request("f", "h"), request("i", "g", memory_mb=100),
    ]  # fmt: skip
    batches = [[one.key.run_id for one in batch] for batch in make_batches(requests)]
    assert sorted(batches) == [["a", "c"], ["b"], ["d"], ["e"], ["f"], ["i"]]


def test_the_memory_of_a_run_replaces_that_of_the_settings() -> None:
    settings = parse_settings("mem_per_cpu=4GB qos=low")
    assert job_parameters([request("a", None)], settings)["mem_per_cpu"] == "4GB"
    limited = job_parameters([request("a", None, memory_mb=1000)], settings)
    assert (limited["mem"], limited["qos"], "mem_per_cpu" in limited) == ("1256MB", "low", False)
    assert limited["additional_parameters"] == {"no-requeue": True}


# --- the thread that submits and watches


class BusyCluster:
    """Submits further runs while it submits one, until its states were looked at."""

    def __init__(self) -> None:
        self.queue: JobQueue | None = None
        self.submitted = 0
        self.has_looked = threading.Event()

    def submit(self, batch: Sequence[JobRequest]) -> list[SubmittedJob]:
        assert self.queue is not None
        self.submitted += 1
        if not self.has_looked.is_set():
            self.queue.submit([request(f"r{self.submitted}", None)])
        return [SubmittedJob(job_id=str(self.submitted))]

    def states(self, jobs: Collection[SubmittedJob]) -> dict[str, str]:
        self.has_looked.set()
        return {job.job_id: "RUNNING" for job in jobs}

    def cancel(self, job_id: str) -> None: ...


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # of the files of `request`
    return tmp_path


def test_states_are_read_while_submissions_come_without_a_pause(in_folder: Path) -> None:
    cluster = BusyCluster()
    news = threading.Event()
    cluster.queue = JobQueue(lambda: cluster, in_folder / "jobs", news.set)
    try:
        cluster.queue.watch({"7": SubmittedJob(job_id="7")})
        cluster.queue.submit([request("first", None)])
        assert cluster.has_looked.wait(60), f"{cluster.submitted:,} submissions, and no look at the states"
    finally:
        cluster.has_looked.set()
        cluster.queue.close()
    assert cluster.submitted > 1
    assert cluster.queue.state("7") == "RUNNING"


def test_every_submission_is_answered_where_submitit_is_missing(in_folder: Path) -> None:
    def make_cluster() -> Cluster:
        raise ModuleNotFoundError("No module named 'submitit'", name="submitit")

    answered = threading.Semaphore(0)
    jobs = JobQueue(make_cluster, in_folder / "jobs", answered.release)
    try:
        for name in ("a", "b"):
            one = request(name, None)
            jobs.submit([one])
            assert answered.acquire(timeout=60), name
            answer = jobs.answer(one.key)
            assert isinstance(answer, Refusal)
            assert "pip install 'mosaic-rl[slurm]'" in answer.text
            assert not answer.is_unreachable
    finally:
        jobs.close()


# --- offers


def test_an_offer_is_taken_or_withdrawn_but_never_both(tmp_path: Path) -> None:
    offer = JobOffer(
        folder="f", worker="w", config="c", is_resume=False, threads=1, max_seconds=None, memory_mb=None, inbox_offset=0
    )
    taken, withdrawn = JobFiles(tmp_path / "taken"), JobFiles(tmp_path / "withdrawn")
    for files in (taken, withdrawn):
        files.offer(offer)
    assert (taken.claim(), taken.withdraw(), taken.claim()) == (offer, False, None)
    assert (withdrawn.withdraw(), withdrawn.claim(), withdrawn.withdraw()) == (True, None, True)


def test_an_attempt_that_replaces_one_with_its_number_has_other_files(tmp_path: Path) -> None:
    first, second = (
        JobFiles.of_attempt(RunFolder(tmp_path), Attempt(number=1, slot=1, started_at=at)).path for at in (1.5, 1.75)
    )
    assert first != second


def test_a_node_with_another_version_is_refused() -> None:
    offer = JobOffer(
        folder="f", worker="w", config="c", is_resume=False, threads=1, max_seconds=None, memory_mb=None, inbox_offset=0
    )
    assert offer.refuse("n1") is None
    other = offer.model_copy(update={"mosaic": "9.9"})
    assert "the trainer has MOSAIC 9.9 with" in (other.refuse("n1") or "")


# --- what a job's state means


@pytest.mark.parametrize(
    ("run", "facts", "expected"),
    [
        (record(job=""), JobFacts(True, is_submitting=True), None),
        (record(job=""), JobFacts(True, job_id="7", state="PENDING"), life.JobQueued(AT, "7")),
        (record(), JobFacts(True, job_id="7", state="PENDING"), None),
        (record(), JobFacts(False, report(), "7", "RUNNING"), life.Placed(AT, "n1", "7")),
        (record(Stage.RUNNING, "n1"), JobFacts(False, report(), "7", "RUNNING"), None),
        (record(), JobFacts(False, report(refusal="other version")), life.StartFailed(AT, "other version")),
        (record(Stage.RUNNING, "n1"), JobFacts(False, report("keeper")), life.KeeperLost(AT)),
        (record(), JobFacts(False, job_id="7", state="RUNNING", claimed_s=1.0), None),
    ],
)
def test_what_a_job_reports(run: RunRecord, facts: JobFacts, expected: life.LifecycleEvent | None) -> None:
    action = act(run, facts)
    assert (None if action is None else action.event) == expected


@pytest.mark.parametrize(
    ("run", "facts", "event"),
    [
        (record(job=""), JobFacts(True), life.NeverStarted),
        (record(Stage.STOPPING), JobFacts(True, job_id="7", state="PENDING"), life.NeverStarted),
        (record(Stage.STOPPING, job=""), JobFacts(True, is_submitting=True), life.NeverStarted),
        (record(), JobFacts(True, refusal="bad partition"), life.StartFailed),
        (record(), JobFacts(True, refusal="no answer", is_unreachable=True), life.NeverStarted),
        (record(), JobFacts(True, job_id="7", state="NODE_FAIL"), life.NeverStarted),
        (record(), JobFacts(True, job_id="7", state="CANCELLED"), life.KeeperLost),
        (record(), JobFacts(True, job_id="7", state="FAILED"), life.StartFailed),
    ],
)
def test_what_ends_before_it_began_holds_if_no_job_takes_it(
    run: RunRecord, facts: JobFacts, event: type[life.LifecycleEvent]
) -> None:
    action = act(run, facts)
    assert action is not None
    assert (type(action.event), action.is_withdrawal) == (event, True)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("PREEMPTED", life.NodeLost(AT, "Slurm preempted job 7 on n1", 10, is_planned=True)),
        ("TIMEOUT", life.NodeLost(AT, "The time limit of job 7 on n1 was reached", 10, is_planned=True)),
        ("NODE_FAIL", life.NodeLost(AT, "Slurm lost job 7 on n1 (NODE_FAIL)", 10)),
        ("CANCELLED", life.KeeperLost(AT, reason="In Slurm, job 7 on n1 was cancelled.")),
        (
            "OUT_OF_MEMORY",
            life.KeeperLost(AT, reason="Slurm killed job 7 on n1, as it took more memory than it was allowed."),
        ),
        ("FAILED", life.KeeperLost(AT, reason="In Slurm, job 7 on n1 ended (FAILED) before the end of the run.")),
    ],
)
def test_a_job_that_was_killed_is_judged_when_nothing_writes_any_more(
    state: str, expected: life.LifecycleEvent
) -> None:
    run = record(Stage.RUNNING, "n1")
    facts = {"is_offered": False, "report": report(), "job_id": "7", "state": state, "checkpoint_step": 10}
    assert act(run, JobFacts(**facts, ended_s=SURVIVAL_S - 1)) is None  # type: ignore[arg-type]
    for later in ({"ended_s": SURVIVAL_S + 1}, {"has_keeper_exited": True}):
        action = act(run, JobFacts(**facts, **later))  # type: ignore[arg-type]
        assert action == JobAction(expected)


def test_a_termination_is_explained_by_slurm_or_after_some_time_not_at_all() -> None:
    run, terminated = record(Stage.RUNNING, "n1"), report("SIGTERM")
    assert act(run, JobFacts(False, terminated, "7", "RUNNING", ended_s=1)) is None
    preempted = act(run, JobFacts(False, terminated, "7", "PREEMPTED"))
    assert preempted == JobAction(life.NodeLost(AT, "Slurm preempted job 7 on n1", None, is_planned=True))
    unexplained = act(run, JobFacts(False, terminated, "7", "", ended_s=STATE_TIMEOUT_S + 1))
    assert unexplained == JobAction(life.KeeperLost(AT, reason="Job 7 on n1 was terminated."))


def test_a_job_that_takes_a_run_and_says_nothing_is_lost() -> None:
    action = act(record(), JobFacts(False, claimed_s=STATE_TIMEOUT_S + 1))
    assert action == JobAction(life.NodeLost(AT, "Its job has not reported that it started the run", None))


# --- the life of such a run


def test_a_preemption_that_loses_nothing_may_happen_any_number_of_times() -> None:
    run = record(Stage.RUNNING, "n1")
    for _ in range(2 * life.MAX_NODE_LOSSES):
        queued = life.advance(run, life.NodeLost(AT, "Slurm preempted it", 10, is_planned=True))
        assert (queued.stage, queued.is_resume, queued.node_losses) == (Stage.QUEUED, True, 0)
    lost = run
    for _ in range(life.MAX_NODE_LOSSES):
        lost = life.advance(lost, life.NodeLost(AT, "Slurm preempted it", None, is_planned=True))
        lost = lost if lost.stage is Stage.FINISHED else lost.model_copy(update={"stage": Stage.RUNNING})
    assert lost.outcome is Outcome.LOST


def test_a_pending_job_that_is_cancelled_ends_its_run_as_cancelled() -> None:
    stopping = life.advance(record(), life.StopRequested(AT))
    ended = life.advance(stopping, life.NeverStarted(AT))
    assert (ended.outcome, ended.reason) == (Outcome.CANCELLED, "Cancelled before it was started.")
