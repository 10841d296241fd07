"""Plays a trained policy on seeds that training never saw, and writes down how it did."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cleanrl_worker import launcher
from cleanrl_worker.config import DEFAULT_SEED, Assignment
from cleanrl_worker.inspection import find_checkpoint
from cleanrl_worker.registry import algorithm, module_name
from mosaic.arena import Episode, Policy, evaluate, summarise
from mosaic.arena.evaluate import AT_ONCE, array_maker
from mosaic.arena.video import Video
from mosaic.contracts.errors import BadInput, ConfigRefused, MosaicError
from mosaic.contracts.files import write_json
from mosaic.contracts.folder import RunFolder
from mosaic.envs import make
from mosaic.envs.factory import described
from mosaic.run import Checkpoint, Run

VIDEOS = 3
"""Episodes that are recorded when videos are asked for: the first ones."""
CAPABILITIES = ("inbox", "pause")


@dataclass(frozen=True)
class Match:
    """A policy with an environment that fits it."""

    checkpoint: Checkpoint
    algo: str
    env_id: str
    first_seed: int
    policy: Policy


def fresh_seeds(training_seed: int) -> int:
    """The first of a row of seeds far away from those that training counts up from."""
    return 1_000_000 + training_seed * 10_000


def matched(assignment: Assignment) -> Match:
    """Loads the policy and refuses, naming both sides, what does not go together."""
    if assignment.extras.policy_path is None:
        raise ConfigRefused("LOG705 extras.policy_path: missing. An evaluation needs the folder of a checkpoint.")
    if assignment.settings:
        path = next(iter(assignment.paths.values()))
        raise ConfigRefused(f"LOG705 {path}: an evaluation takes its settings from the checkpoint. Leave it out.")
    sizes = {assignment.extras.eval_batch_size, assignment.extras.eval_episodes} - {None}
    if len(sizes) > 1:
        raise ConfigRefused("LOG705 extras.eval_batch_size and extras.eval_episodes differ. Give one of them.")
    checkpoint = find_checkpoint(assignment.extras.policy_path)
    trained = checkpoint.facts.get("config", {})
    algo = str(checkpoint.facts.get("algorithm", ""))
    if assignment.config.algo not in (None, algo):
        raise BadInput(f"The checkpoint {checkpoint.path} is of {algo!r}, not of {assignment.config.algo!r}.")
    env_id = assignment.config.env_id or trained["env_id"]
    try:
        policy = algorithm(algo).load_policy(checkpoint)
    except KeyError as error:
        raise BadInput(
            f"The checkpoint {checkpoint.path} lacks {error.args[0]!r}; without it the policy would not act as it was "
            "trained. Choose another checkpoint."
        ) from error
    _fit(checkpoint, policy, env_id, trained["env_id"])
    override = assignment.extras.seed_override
    first_seed = fresh_seeds(int(trained.get("seed", DEFAULT_SEED))) if override is None else override
    return Match(checkpoint, algo, env_id, first_seed, policy)


def _fit(checkpoint: Checkpoint, policy: Policy, env_id: str, trained_id: str) -> None:
    import numpy as np

    env = make(env_id)
    try:
        if env_id != trained_id:
            trained = make(trained_id)
            ours, theirs = _spaces(env), _spaces(trained)
            trained.close()
            if ours != theirs:
                raise BadInput(
                    f"The checkpoint {checkpoint.path} was trained on {trained_id!r} ({theirs}); "
                    f"{env_id!r} has {ours}. Choose an environment with the same spaces."
                )
        observation, _ = env.reset(seed=0)
        try:
            actions = policy.act(array_maker(env.observation_space)(observation)[None], True, np.random.default_rng(0))
        except (ValueError, IndexError) as error:
            raise BadInput(f"The weights of {checkpoint.path} do not fit {env_id!r} ({error}).") from error
        if np.shape(actions)[1:] != env.action_space.shape:
            raise BadInput(f"The actions of {checkpoint.path} do not fit {env_id!r} ({env.action_space}).")
    finally:
        env.close()


def _spaces(env: Any) -> str:
    """What a policy depends on: shapes and counts, not bounds."""
    return ", ".join(
        f"{name} {type(space).__name__} {getattr(space, 'n', space.shape)}"
        for name, space in (("observations", env.observation_space), ("actions", env.action_space))
    )


def check(assignment: Assignment) -> dict[str, Any]:
    """The part of a dry run's summary that is about an evaluation."""
    match = matched(assignment)
    env = make(match.env_id)
    env.close()
    return {
        "module": module_name(match.algo),
        "algo": match.algo,
        "env_id": match.env_id,
        "seed": match.first_seed,
        "policy_path": str(match.checkpoint.path),
        "checkpoint_step": match.checkpoint.step,
        "settings": match.checkpoint.facts.get("config", {}),
        "environment": described(env),
        "backend": match.checkpoint.facts.get("backend"),
        "eval_batch_size": assignment.eval_batch_size,
        "eval_repeat": bool(assignment.extras.eval_repeat),
    }


def run_evaluation(assignment: Assignment, match: Match, folder: RunFolder) -> None:
    """One batch, or batch after batch until stopped."""
    with launcher.open_run(assignment, folder, capabilities=CAPABILITIES) as run:
        try:
            run.hello()
            launcher.tell_not_yet(run, assignment)
            run.event(
                "policy_eval_started",
                algo=match.algo,
                env_id=match.env_id,
                policy_path=str(match.checkpoint.path),
                checkpoint_step=match.checkpoint.step,
                eval_batch_size=assignment.eval_batch_size,
                eval_repeat=bool(assignment.extras.eval_repeat),
            )
            run.frames = launcher.live_frames(assignment, run, match.env_id)
            batches = _Batches(assignment, match, run)
            while batches.play() and assignment.extras.eval_repeat:
                pass
            run.event("policy_eval_completed", batches=len(batches.done), episodes=batches.episodes)
        except MosaicError as error:
            run.finish("rejected" if isinstance(error, BadInput) else "failed", str(error))
            raise
        run.finish("stopped" if run.stop_requested else "succeeded")


class _Batches:
    """Batch after batch, each on the next seeds."""

    def __init__(self, assignment: Assignment, match: Match, run: Run) -> None:
        self.done: list[dict[str, Any]] = []
        self.episodes = 0
        self._size = assignment.eval_batch_size
        self._captures = bool(assignment.extras.eval_capture_video)
        self._match = match
        self._run = run
        self._steps = 0
        self._videos: list[str] = []

    def play(self) -> bool:
        """One batch; False when the run was asked to stop."""
        run, match = self._run, self._match
        first = match.first_seed + len(self.done) * self._size
        camera = _Camera(run, VIDEOS) if self._captures and not self.done else None
        render_mode = "rgb_array" if camera else None
        steps_before = self._steps
        started = time.monotonic()

        def on_step(steps: int) -> bool:
            self._steps = steps_before + steps
            run.update(self._steps)
            return not run.stop_requested

        def on_episode(episode: Episode) -> None:
            self.episodes += 1
            run.episode(env=0, step=self._steps, episodic_return=episode.episodic_return, length=episode.length)
            run.scalar("eval/episodic_return", episode.episodic_return, self.episodes)
            run.scalar("eval/episodic_length", episode.length, self.episodes)
            if camera:
                camera.finish(episode)

        try:
            episodes = evaluate(
                match.policy,
                _maker(match.env_id, render_mode, run, self._size),
                range(first, first + self._size),
                on_episode=on_episode,
                record=camera.shoot if camera else None,
                on_step=on_step,
            )
        finally:
            if camera:
                self._videos += camera.close()
        if episodes:
            self._write(summarise(episodes), time.monotonic() - started)
        return not run.stop_requested

    def _write(self, batch: dict[str, Any], duration_s: float) -> None:
        batch["duration_s"] = duration_s
        batch["batch"] = len(self.done) + 1
        self.done.append(batch)
        run, match = self._run, self._match
        for name in ("avg_return", "median_return", "min_return", "max_return", "std_return", "iqm"):
            run.scalar(f"eval/{name}", batch[name], batch["batch"])
        latest = {
            "algo": match.algo,
            "env_id": match.env_id,
            "policy_path": str(match.checkpoint.path),
            "checkpoint_step": match.checkpoint.step,
            "deterministic": True,
            **batch,
        }
        write_json(run.folder.eval_summary, {**latest, "batches": self.done, "videos": self._videos})
        brief = {key: value for key, value in latest.items() if key not in ("seeds", "returns", "lengths")}
        run.artifact("evaluation", brief)
        run.artifact("videos", self._videos)
        run.event("eval_summary_update", summary=brief)


def _maker(env_id: str, render_mode: str | None, run: Run, size: int) -> Callable[[], Any]:
    """Makes one environment after the other, each to be watched as far as the run shows any."""
    from cleanrl_worker.vector import Watched

    indices = itertools.count()

    def made() -> Any:
        env = make(env_id, render_mode=render_mode)
        tap = run.frames.tap(env, next(indices), min(AT_ONCE, size)) if run.frames else None
        return env if tap is None else Watched(env, tap)

    return made


class _Camera:
    """Records the first episodes of a batch. Where no picture can be had, the evaluation goes on without."""

    def __init__(self, run: Run, episodes: int) -> None:
        self._run = run
        self._folder = run.folder
        self._episodes = episodes
        self._videos: dict[int, Video] = {}
        self._finished: list[str] = []

    def shoot(self, index: int, env: Any) -> None:
        if index >= self._episodes:
            return
        if index not in self._videos:
            fps = int(env.metadata.get("render_fps") or 30)
            self._videos[index] = Video(self._folder.eval_videos / f"rl-video-episode-{index}.mp4", fps)
        try:
            self._videos[index].add(env.render())
        except Exception as error:
            # Graphics drivers, encoders and full disks fail in ways of their own; none of them spoils the returns.
            self._episodes = 0
            self._run.warn(f"No video of this evaluation: {error}. To see what is wrong: mosaic doctor", "no_video")

    def finish(self, episode: Episode) -> None:
        video = self._videos.pop(episode.index, None) if self._episodes else None
        if video is not None:
            name = f"{self._folder.run_id}-eval-{episode.index}"
            video.finish(name, episode.episodic_return, episode.length)
            self._finished.append(str(video.path.relative_to(self._folder.path)))

    def close(self) -> list[str]:
        """Paths of the videos that are complete, relative to the run folder."""
        for video in self._videos.values():
            video.abandon()
        return sorted(self._finished)
