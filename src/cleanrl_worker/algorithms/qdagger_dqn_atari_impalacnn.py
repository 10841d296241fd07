"""QDagger for Atari games: a deep Q-network that starts from what a trained policy, its teacher, can do.

The teacher first plays and fills the replay buffer. The student, an IMPALA network, then learns offline from that
buffer: by deep Q-learning, and by distillation, which moves its preferences among the actions towards the teacher's.
Finally it plays itself, with less distillation the closer its returns come to the teacher's, and none once it is as
good. It saves most of the steps that dqn_atari needs where a policy for the game exists, and can surpass its teacher.

Papers: Agarwal et al., "Reincarnating Reinforcement Learning", https://arxiv.org/abs/2206.01626; network: Espeholt et
al., "IMPALA", https://arxiv.org/abs/1802.01561.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field

from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms.replay_settings import AtariValueConfig
from cleanrl_worker.algorithms.settings import LEARNING, ROLLOUT, RUN, EpsilonGreedyConfig
from cleanrl_worker.evaluation.policies import greedy_image_policy
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.conv_network import (
    FIRST_IMPALA_DENSE_LAYER,
    IMPALA_LAYERS,
    ConvAgent,
    ConvNetworkSizes,
    dense_layer,
    impala_shapes,
    uniform_weights,
)
from cleanrl_worker.loops import value_frames
from cleanrl_worker.loops.replay_world import atari_world_of
from cleanrl_worker.loops.teacher_phases import COMPARED_EPISODES, Phase, PhasedExploration, PhasedWorld
from cleanrl_worker.loops.value_frames import FrameValueLearner
from cleanrl_worker.replay.buffers import FrameReplay
from mosaic.contracts.errors import refuse_key
from mosaic.worker.envs.atari import FRAME_SIZE_PX, FRAME_STACK

if TYPE_CHECKING:
    import torch

    from cleanrl_worker.evaluation.teachers import Teacher
    from cleanrl_worker.learners.torch_backend import NonFiniteReport
    from cleanrl_worker.learners.torch_conv import ImageInferenceStep
    from cleanrl_worker.learners.torch_replay import TargetNetworkLearner
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "qdagger_dqn_atari_impalacnn"
SIZES = ConvNetworkSizes((16, 32, 32), (256,))
NETWORK = Architecture((256,), "relu")
METRIC_NAMES = ("loss", "td_loss", "distill_loss", "q_values")


class Config(
    AtariValueConfig,
    EpsilonGreedyConfig,
    defaults={
        "exp_name": NAME, "target_network_frequency": 1000, "end_e": 0.01, "exploration_fraction": 0.1,
        **NETWORK.settings,
    },
):  # fmt: skip
    """Settings of QDagger for Atari games."""

    takes_network: ClassVar[bool] = False
    total_timesteps: int = Field(default=10_000_000, gt=0, json_schema_extra=RUN)
    """Steps of the run: `teacher_steps`, `offline_steps`, and then steps in the games; one of these is four frames."""
    learning_starts: int = Field(default=80_000, ge=0, json_schema_extra=LEARNING)
    """Steps of the run before the first gradient step that is not offline; the first two phases count."""
    exploration_fraction: float = Field(default=0.1, ge=0, le=1, json_schema_extra=ROLLOUT)
    """The fraction of the online steps over which epsilon falls; the offline steps count as the first of them."""
    tau: float = Field(default=1.0, gt=0, le=1, json_schema_extra=LEARNING)
    """The fraction by which each target update moves the target network towards the online network; 1 copies it."""
    teacher_policy: str | None = Field(default=None, min_length=1, max_length=4096, json_schema_extra=RUN)
    """The teacher: the id of a run of dqn_atari, or the path of a run, a checkpoint or a .cleanrl_model. Required."""
    teacher_policy_hf_repo: str | None = Field(default=None, max_length=200, json_schema_extra=RUN)
    """CleanRL's name of a teacher on the Hub; not downloaded: pull it first, and give its run as the teacher."""
    teacher_model_exp_name: Literal["dqn_atari", "qdagger_dqn_atari_impalacnn"] = Field(
        default="dqn_atari", json_schema_extra=RUN
    )
    """The algorithm of the teacher, if its file does not state it."""
    teacher_eval_episodes: int = Field(default=10, ge=1, le=100_000, json_schema_extra=RUN)
    """Games by which the teacher's mean return is measured at the start."""
    teacher_steps: int = Field(default=500_000, ge=1, json_schema_extra=ROLLOUT)
    """Steps in which the teacher fills the replay buffer."""
    offline_steps: int = Field(default=500_000, ge=0, json_schema_extra=LEARNING)
    """Gradient steps on that buffer before the student plays."""
    temperature: float = Field(default=1.0, gt=0, json_schema_extra=LEARNING)
    """The temperature of the preferences that are distilled; lower ones are more decided."""

    @property
    def online_start(self) -> int:
        """The step after which the student plays."""
        return self.teacher_steps + self.offline_steps

    def phase(self, step: int) -> Phase:
        """Return the phase of the step that follows after `step` steps."""
        return "teacher" if step < self.teacher_steps else "offline" if step < self.online_start else "online"

    def epsilons(self, steps: Array) -> Array:
        """Return epsilon at these steps: it falls over the teacher's steps, and again for the student."""
        duration = max(1.0, self.exploration_fraction * (self.total_timesteps - self.online_start))
        student_progress = (steps - self.teacher_steps) / duration
        progress = np.where(steps < self.teacher_steps, steps / self.teacher_steps, student_progress)
        return np.asarray(self.start_e + (self.end_e - self.start_e) * np.minimum(progress, 1.0))


class Agent(ConvAgent):
    """A Q-network of three sequences of a convolution, a pooling and two residual blocks, and a dense layer."""

    def __init__(self, action_count: int, sizes: ConvNetworkSizes = SIZES) -> None:
        self.action_count = action_count
        shapes = impala_shapes(FRAME_STACK, FRAME_SIZE_PX, sizes._replace(hidden=(*sizes.hidden, action_count)))
        super().__init__(shapes)

    def initialize(self, rng: np.random.Generator) -> None:
        self.parameters = uniform_weights(self.shapes, rng)


# --- in torch


def q_values(
    weights: Mapping[str, torch.Tensor], images: torch.Tensor, architecture: Architecture = NETWORK
) -> torch.Tensor:
    """Return the Q-values [rows, actions] for images [rows, 84, 84, 4]."""
    from torch.nn.functional import linear

    from cleanrl_worker.learners.torch_conv import impala_features

    head = dense_layer(architecture.layer_count, FIRST_IMPALA_DENSE_LAYER)
    hidden = impala_features(weights, images, architecture)
    return linear(hidden, weights[f"{head}.weight"], weights[f"{head}.bias"])


def loss(
    weights: Any,
    target: Any,
    batch: Any,
    teacher: Callable[[torch.Tensor], torch.Tensor],
    coefficient: torch.Tensor,
    gamma: float,
    temperature: float,
    architecture: Architecture = NETWORK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the squared TD error plus the weighted distillation loss, and the reported metrics.

    The distillation loss is the divergence KL(teacher, student) of softmax(Q / temperature), summed over the rows as in
    CleanRL's script.
    """
    import torch
    from torch.nn.functional import kl_div, log_softmax, mse_loss

    with torch.no_grad():
        next_values = q_values(target, batch.next_observations, architecture).amax(1)
        td_targets = batch.rewards + gamma * next_values * (1 - batch.terminals)
        preferences = log_softmax(teacher(batch.observations) / temperature, 1)
    values = q_values(weights, batch.observations, architecture)
    chosen = values.gather(1, batch.actions[:, None])[:, 0]
    td_loss = mse_loss(chosen, td_targets)
    distill_loss = kl_div(log_softmax(values / temperature, 1), preferences, reduction="sum", log_target=True)
    total = td_loss + coefficient * distill_loss
    return total, torch.stack([total, td_loss, distill_loss, chosen.mean()]).detach()


def distillation_weight(student_returns: Sequence[float], teacher_return: float) -> float:
    """Return the weight of the distillation loss: 1 - student's return / teacher's return, within what it means."""
    if len(student_returns) < COMPARED_EPISODES:
        return 1.0
    if fmean(student_returns) >= teacher_return:
        return 0.0
    # A ratio to a teacher without a positive return says nothing.
    return 1 - fmean(student_returns) / teacher_return if teacher_return > 0 else 1.0


def _learner(
    config: Config, agent: Agent, target: Mapping[str, Array], replay: FrameReplay, teacher: Teacher
) -> tuple[TargetNetworkLearner, ImageInferenceStep, ImageInferenceStep, torch.Tensor]:
    """Return the learner, student and teacher as functions from images to Q-values, and the weight of distillation."""
    import torch

    from cleanrl_worker.learners.torch_backend import TorchContext
    from cleanrl_worker.learners.torch_replay import ReplayFeed, TargetNetworkLearner, make_inference_step

    compute = TorchContext.from_settings(config)
    feed = ReplayFeed(replay, config.batch_size, FRAME_STACK + 1, compute)
    teacher_values = teacher.network(compute.device)
    coefficient = torch.ones((), device=compute.device)
    total_loss = functools.partial(
        loss, teacher=teacher_values, coefficient=coefficient,
        gamma=config.gamma, temperature=config.temperature, architecture=config.architecture,
    )  # fmt: skip
    learner = TargetNetworkLearner(
        agent.parameters, target, total_loss, feed, config.learning_rate,
        epsilon=1e-8, metric_names=METRIC_NAMES, compute=compute,
    )  # fmt: skip
    values = functools.partial(q_values, learner.weights, architecture=config.architecture)
    student_step, teacher_step = (
        make_inference_step(replay, agent.action_count, work, compute) for work in (values, teacher_values)
    )
    return learner, student_step, teacher_step, coefficient


# --- training


class QDaggerLearner(FrameValueLearner):
    """Learns offline, step by step, and then online as deep Q-learning does."""

    def __init__(
        self, teacher: Teacher, config: Config, agent: Agent, make_core: Any, world: PhasedWorld, *rest: Any
    ) -> None:
        super().__init__(config, agent, make_core, world, *rest)
        self.teacher_values, self._coefficient = self.more
        self._teacher, self._world, self._step = teacher, world, 0
        self._weight = 1.0
        # The loop's target updates and reports are those of the online phase.
        self.update_target = self._update_online_target
        self.first_non_finite = self._first_non_finite_update

    def train_offline(self, step: int) -> None:
        """Take the gradient steps that follow after `step` steps of the run: one for each step that the loop counts."""
        config = self.config
        for done in range(step + 1, step + config.num_envs + 1):
            self.core.update(self._world.replay)
            if (done - config.teacher_steps) % config.target_network_frequency == 0:
                self.core.update_target(config.tau)

    def update(self, replay: Any, step: int) -> bool:
        self._step = step
        if step <= self.config.online_start:
            return True
        facts = self._world.facts
        weight = distillation_weight(facts["student_returns"], facts["teacher_return"])
        if weight != self._weight:
            self._weight = weight
            self._coefficient.fill_(weight)
        return super().update(replay, step)

    def _update_online_target(self, tau: float) -> None:
        if self._world.phase == "online":
            self.core.update_target(tau)

    def _first_non_finite_update(self) -> NonFiniteReport | None:
        """Count what the loop takes for one update: offline it is several gradient steps."""
        report: NonFiniteReport | None = self.core.first_non_finite()
        if report is None or self._world.phase == "online":
            return report
        return report._replace(steps_ago=report.steps_ago // (self.config.num_envs * self.config.train_frequency))

    def metrics(self) -> dict[str, float]:
        phase = self._world.phase
        if phase == "teacher":
            return {}
        losses = self.core.losses()
        if phase == "offline":
            names = {"loss": "loss", "q_loss": "td_loss", "distill_loss": "distill_loss"}
            return {f"charts/offline/{tag}": losses[name] for tag, name in names.items()}
        epsilon = float(self.config.epsilons(np.array([self._step]))[0])
        charts = {"charts/distill_coeff": self._weight, "charts/epsilon": epsilon}
        return {**{f"losses/{name}": value for name, value in losses.items()}, **charts}

    def checkpoint_state(self, replay: Any) -> tuple[dict[str, Array], dict[str, Array], int]:
        weights, arrays, count = super().checkpoint_state(replay)
        return weights, {**arrays, **self._teacher.arrays}, count


def make_agent(config: Config, action_count: int) -> Agent:
    return Agent(action_count, SIZES.with_architecture(config.architecture))


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    return value_frames.check(NAME, config, env, make_agent)


def check_teacher(config: Config) -> dict[str, Any]:
    """Raise if there is no teacher for this game, or no step after its phases; otherwise return what it is."""
    from cleanrl_worker.evaluation.teachers import find_teacher

    if config.total_timesteps <= config.online_start:
        raise refuse_key(
            "total_timesteps",
            f"{config.total_timesteps:,} steps end before the student plays: teacher_steps = {config.teacher_steps:,} "
            f"and offline_steps = {config.offline_steps:,} come first. Raise it, or lower these.",
        )
    teacher, path = find_teacher(NAME, config)
    return {"teacher": path, "teacher_algo": teacher.algo}


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    from cleanrl_worker.evaluation.teachers import Teacher, find_teacher, measure_teacher

    if resume is None:
        (teacher, _), teacher_return = find_teacher(NAME, config), None
    else:
        base.check_checkpoint_algorithm(NAME, resume)
        teacher, teacher_return = Teacher.of_student(resume), resume.facts["teacher_return"]
    if teacher_return is None:
        teacher_return = measure_teacher(config, run, teacher)
    make_core, kind = functools.partial(_learner, teacher=teacher), functools.partial(QDaggerLearner, teacher)
    with atari_world_of(PhasedWorld, config, run, num_envs=config.num_envs) as world:
        world.facts |= {"teacher": teacher.facts, "teacher_return": teacher_return, "student_returns": []}
        explore = functools.partial(PhasedExploration, world, run)
        value_frames.train(NAME, config, run, resume, world, make_agent, make_core, kind, explore)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    def make_saved(sizes: ConvNetworkSizes) -> Agent:
        return Agent(checkpoint.facts["shape"]["actions"], sizes)

    convolutions = [f"{name}.conv" for name in IMPALA_LAYERS]
    return base.load_conv_agent(NAME, checkpoint, make_saved, NETWORK, convolutions)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    import torch

    from cleanrl_worker.learners.torch_conv import as_tensors

    weights = as_tensors(_load_agent(checkpoint).parameters, torch.device("cpu"), is_learned=False)
    values = functools.partial(q_values, weights, architecture=base.saved_architecture(checkpoint, NETWORK))
    return greedy_image_policy(checkpoint, values)


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save."""
    return _load_agent(checkpoint).state_dict()
