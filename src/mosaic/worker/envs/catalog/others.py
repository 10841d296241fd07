"""Families without a description of their environments."""

from __future__ import annotations

from mosaic.worker.envs.family import EnvFamily

PROCGEN = EnvFamily(
    name="procgen",
    title="Procgen",
    about="Sixteen games with a new level in each episode.",
    sample_env_id="procgen-coinrun-v0",
    packages=("procgen",),
    pattern=r"procgen[-:/]",
    is_unsupported=True,
)

FUNCTIONAL = EnvFamily(
    name="functional",
    title="Functional (JAX)",
    about="Gymnasium's environments as pure functions, for JAX.",
    sample_env_id="phys2d/CartPole-v1",
    packages=("gymnasium", "jax"),
    entry_points=("gymnasium.envs.phys2d", "gymnasium.envs.tabular"),
)

DM_CONTROL = EnvFamily(
    name="dm_control",
    title="DeepMind Control",
    about="Bodies and robots of the DeepMind Control Suite, which are moved by torques.",
    sample_env_id="dm_control/cartpole-balance-v0",
    packages=("shimmy", "dm_control"),
    # dm_control 1.0.50 accepts MuJoCo 4, and fails with it.
    requirements="'shimmy[dm-control]' 'mujoco<4'",
    registering_module="shimmy",
    pattern=r"dm_control/",
    known_ids=("dm_control/cartpole-balance-v0", "dm_control/cheetah-run-v0", "dm_control/walker-walk-v0"),
    environment_variables={"MUJOCO_GL": "egl"},
)

MEMORY_GYM = EnvFamily(
    name="memory_gym",
    title="Memory Gym",
    about="Games on images in which the agent must remember what it has seen, such as Mortar Mayhem.",
    sample_env_id="MortarMayhem-Grid-v0",
    packages=("pygame", "memory_gym"),
    # It states that it needs gymnasium 0.29, and works with 1.x.
    requirements="pygame && pip install --no-deps memory-gym",
    registering_module="memory_gym",
    entry_points=("memory_gym.",),
    pattern=r"(Endless-)?(MortarMayhem|MysteryPath|SearingSpotlights)",
    known_ids=("MortarMayhem-Grid-v0", "MysteryPath-Grid-v0", "SearingSpotlights-v0"),
    environment_variables={"SDL_AUDIODRIVER": "dummy"},
)
