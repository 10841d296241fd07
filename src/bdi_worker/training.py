"""Trains an agent: Q-learning of which plan to take.

The intentions of an agent cannot be saved, so checkpoints are of the time between two episodes. A run that is stopped
within one resumes from its start.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bdi_worker.asl_source import AslSource, read_source
from bdi_worker.engine import Decision, Mind
from bdi_worker.percepts import Perception, find_perception
from bdi_worker.plan_values import LEARN, LearningAgent, build_learner, check_labels, end_episode
from bdi_worker.policy import EpisodeStart, SavedAgent, make_env, read_agent, save_agent
from bdi_worker.worker_config import BdiSettings
from mosaic.contracts.errors import BadInput, MosaicError, problems_of
from mosaic.worker.checkpoints import Checkpoint
from mosaic.worker.envs.reproducible import HASH_INTERVAL, hash_observation, random_state, restore_random_state
from mosaic.worker.recorders import TappedEnv
from mosaic.worker.run import Run

MAX_FALLBACKS = 50
"""After this many successive steps without an action of the agent, the run fails."""
MAX_ABANDONED_STEPS = 1_000
"""A stop truncates episodes longer than this, and keeps what they taught: without a time limit they may be endless."""


def check_training(settings: BdiSettings, resumed: Checkpoint | None = None) -> tuple[AslSource, Mind, Any]:
    """Return the agent's file, the agent and its environment; raise if they do not fit, or the first decision fails."""
    saved = None if resumed is None else read_agent(resumed)
    env = make_env(settings)
    try:
        with problems_of("env_id"):
            perception = find_perception(env)
        with problems_of("asl"):
            source, _ = _read_source(settings, perception, saved)
            mind = _build(settings, source, perception)
            if saved is not None:
                check_labels(source.name, mind.agent.table.labels, saved.table.labels)
            observation, _ = env.reset(seed=settings.seed)
            mind.agent.state = perception.state(observation)
            mind.start_episode()
            decision = mind.decide(observation)
            if decision.problem:
                raise BadInput(
                    f"{source.name} does not act in the first step of {settings.env_id}: {decision.problem}."
                )
    finally:
        env.close()
    return source, mind, env


def _build(settings: BdiSettings, source: AslSource, perception: Perception) -> Mind:
    mind = build_learner(source, perception, np.random.default_rng(settings.seed))
    if not mind.agent.table.labels:
        raise BadInput(
            f"{source.name} has no plan with [{LEARN}], such as @name[{LEARN}] +!act <- ….: nothing can be learned. "
            f"To let it act as it is: mosaic play {settings.env_id} --actor bdi:FILE"
        )
    agent: LearningAgent = mind.agent
    agent.learning_rate, agent.gamma, agent.epsilon = settings.learning_rate, settings.gamma, settings.start_e
    return mind


class Training:
    def __init__(self, settings: BdiSettings, run: Run, resumed: Checkpoint | None) -> None:
        self._settings = settings
        self._run = run
        env = make_env(settings)
        tap = run.frames.tap(env, 0, 1) if run.frames is not None else None
        self._env = env if tap is None else TappedEnv(env, tap)
        self._perception = find_perception(env)
        saved = None if resumed is None else read_agent(resumed)
        self._source, warning = _read_source(settings, self._perception, saved)
        self._mind = _build(settings, self._source, self._perception)
        self._agent: LearningAgent = self._mind.agent
        self._step = 0
        self._episode_number = 0
        """Of the current episode, over all attempts."""
        self._camera = None if run.frames is None else run.frames.camera
        self._recorder = None if run.frames is None else run.frames.recorder
        self._fallbacks_in_a_row = 0
        self._seed: int | None = settings.seed
        """Of the next reset; only the first has one."""
        for text in (*self._mind.warnings, *warning):
            run.warn(text, "asl_warning")
        if resumed is not None and saved is not None:
            self._agent.table = saved.table
            self._restore(resumed)

    def _restore(self, resumed: Checkpoint) -> None:
        self._agent.rng.bit_generator.state = resumed.facts["rng"]
        self._env.reset(seed=self._settings.seed)
        restore_random_state(self._env.unwrapped, resumed.facts["env"])
        if resumed.step:
            self._seed = None
        self._step = resumed.step
        self._episode_number = int(resumed.facts.get("episodes", 0))

    def train(self) -> None:
        """Train until done or stopped, and save the last checkpoint."""
        run, total = self._run, self._settings.total_timesteps
        self._saved_step = self._step if self._step else -1
        self._mark_start()
        run.save_latest = self._save_latest
        try:
            while self._step < total and not run.stop_requested and self._play_episode():
                self._mark_start()
                if run.checkpoint_due(self._step) and self._step < total and not run.stop_requested:
                    self._save()
            run.global_step = self._start.step
            if self._saved_step != self._start.step:
                self._save()
            if not self._start.step:
                run.stop_note = "Nothing was trained yet."
        finally:
            run.save_latest = None
            self._env.close()

    def _mark_start(self) -> None:
        """Note the state between two episodes, to which a checkpoint during the next one belongs."""
        env = None if self._seed is not None else random_state(self._env.unwrapped)
        rng, rows = self._agent.rng.bit_generator.state, len(self._agent.table)
        self._start = EpisodeStart(self._step, rows, rng, env, self._episode_number, self._run.mark_log())
        self._agent.changed.clear()

    def _save_latest(self) -> None:
        if self._saved_step != self._start.step:
            self._save(is_interim=True)

    def _save(self, is_interim: bool = False) -> None:
        if self._recorder is not None:
            self._recorder.flush()
        save_agent(self._run, self._start, self._settings, self._source, self._agent, is_interim)
        self._saved_step = self._start.step

    def _play_episode(self) -> bool:
        """Play an episode and learn from it; return False if the run was stopped and the episode was abandoned."""
        run, agent, mind = self._run, self._agent, self._mind
        seed, self._seed = self._seed, None
        state = random_state(self._env.unwrapped) if seed is None and self._recorder is not None else None
        observation, _ = self._env.reset(seed=seed)
        number = self._episode_number
        is_filmed = self._camera is not None and self._camera.start_episode(number, self._env)
        actions, rewards = list[int](), list[float]()
        hashes = [] if self._recorder is None else [(0, hash_observation(observation))]
        mind.start_episode()
        agent.error_sum, agent.update_count = 0.0, 0
        episodic_return, length, fallbacks = 0.0, 0, 0
        is_terminated = is_truncated = False
        while not (is_terminated or is_truncated):
            agent.epsilon = self._settings.epsilon(self._step)
            agent.state = self._perception.state(observation)
            decision = mind.decide(observation)
            fallbacks += self._count_fallback(decision)
            observation, reward, is_terminated, is_truncated, _ = self._env.step(decision.action)
            if is_filmed and self._camera is not None:
                self._camera.capture_frame(number)
            if self._recorder is not None:
                actions.append(int(decision.action))
                rewards.append(float(reward))
                if is_terminated or is_truncated or len(rewards) % HASH_INTERVAL == 0:
                    hashes.append((len(rewards), hash_observation(observation)))
            agent.add_reward(float(reward))
            episodic_return += float(reward)
            length += 1
            self._step += 1
            run.update(self._step)
            if run.stop_requested and length <= MAX_ABANDONED_STEPS:
                return False
            if self._step >= self._settings.total_timesteps or run.stop_requested:
                break
        end_episode(mind, None if is_terminated else observation)
        if is_terminated or is_truncated:
            run.episode(env=0, step=self._step, episodic_return=episodic_return, length=length)
            self._episode_number += 1
            if is_filmed and self._camera is not None:
                self._camera.finish_episode(number, episodic_return, length)
            if self._recorder is not None:
                steps = [np.array(actions)], [np.array(rewards, np.float64)]
                self._recorder.add(seed, state, *steps, is_terminated, hashes)
        elif run.stop_requested:
            text = f"The last episode was truncated after {length:,} steps by the stop: resuming starts a new one."
            run.warn(text, "episode_truncated")
        run.scalars(
            self._step,
            {
                "charts/epsilon": agent.epsilon or 0.0,
                "losses/td_error": agent.error_sum / max(agent.update_count, 1),
                "bdi/table_rows": len(agent.table),
                "bdi/fallbacks": fallbacks,
            },
        )
        return True

    def _count_fallback(self, decision: Decision) -> bool:
        if not decision.problem:
            self._fallbacks_in_a_row = 0
            return False
        action = self._perception.action_names[decision.action]
        if not self._fallbacks_in_a_row:
            self._run.event("actor_fallback", step=self._step, action=action, reason=decision.problem)
        self._fallbacks_in_a_row += 1
        if self._fallbacks_in_a_row >= MAX_FALLBACKS:
            raise MosaicError(
                f"{self._source.name} chose no action in {MAX_FALLBACKS} successive steps: {decision.problem}."
            )
        return True


def _read_source(
    settings: BdiSettings, perception: Perception, saved: SavedAgent | None
) -> tuple[AslSource, tuple[str, ...]]:
    """Return the agent's file, with warnings. A resumed run without it continues with the copy in its checkpoint."""
    try:
        source = read_source(settings.asl or perception.example)
    except BadInput as error:
        if saved is None:
            raise
        return saved.source, (f"{error} The run resumes with the copy in its checkpoint.",)
    if saved is not None and saved.source.sha256 != source.sha256:
        return source, (f"{source.name} has changed since the checkpoint; the run resumes with its new content.",)
    return source, ()
