"""Families without a description of their environments."""

from __future__ import annotations

from mosaic.envs.family import EnvFamily

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
