"""Infos of gymnasium 1.x in the form of 0.29."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from mosaic.probe.inside.compat import to_old_infos


def test_each_ended_environment_has_its_own_info() -> None:
    envs = gym.vector.SyncVectorEnv(
        [lambda: gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))] * 3,
        autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
    )
    envs.reset(seed=1)
    infos: dict[str, Any] = {}
    while "final_info" not in infos:
        infos = envs.step(np.zeros(3, dtype=int))[4]
    envs.close()
    ended = np.flatnonzero(infos["_final_info"])
    old_infos = to_old_infos(infos, 3)
    assert len(old_infos["final_info"]) == len(old_infos["final_observation"]) == 3
    for index in range(3):
        info = old_infos["final_info"][index]
        if index not in ended:
            assert info is None
            continue
        assert info["episode"]["r"].shape == (1,)
        assert info["episode"]["r"][0] == info["episode"]["l"][0] > 5
        assert old_infos["final_observation"][index].shape == (4,)
    assert "final_obs" not in old_infos
    assert old_infos["_final_observation"].tolist() == [index in ended for index in range(3)]


def test_values_that_an_environment_does_not_have_are_left_out() -> None:
    infos = {
        "final_info": {"lives": np.array([3, 0]), "_lives": np.array([True, False]), "n": {"x": np.array([1, 2])}},
        "_final_info": np.array([True, True]),
        "final_obs": np.array([None, None], dtype=object),
    }
    first, second = to_old_infos(infos, 2)["final_info"]
    assert first == {"lives": 3, "n": {"x": 1}}
    assert second == {"n": {"x": 2}}
