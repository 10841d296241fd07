"""What cannot be seen of a script is reported in one line, with what to do."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.helpers.commands import mosaic
from tests.helpers.daemons import ended
from tests.helpers.probe_scripts import CARTPOLE, events, start_script, write_script

from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.views import RunView
from mosaic.trainer.client.trainer_client import TrainerClient

OLD_INFOS = """
    import sys
    import gymnasium as gym
    import loop
    sys.modules["classes"] = type(sys)("classes")
    sys.modules["classes"].__file__ = "classes.py"  # there is no such file, as for torch.classes
    modes = {"autoreset_mode": gym.vector.AutoresetMode[name] for name in sys.argv[1:]}
    envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2, **modes)
    loop.train(envs)
"""
LOOP = """
    def train(envs):
        envs.reset(seed=1)
        for _ in range(60):
            *_, infos = envs.step(envs.action_space.sample())
            if "final_info" in infos:
                print("ended")
"""


def warnings(view: RunView) -> list[str]:
    return [entry.message for entry in view.history if entry.message.startswith("Warning: ")]


def test_a_program_that_the_probe_cannot_enter_is_named_in_its_history(
    trainer: TrainerClient, tmp_path: Path, workspace: Workspace
) -> None:
    ids = [start_script(trainer, tmp_path / flag, "print('hello')", flags=(flag,)) for flag in ("-E", "-I", "-S")]
    for run_id in ids:
        (warning,) = warnings(ended(trainer, run_id))
        assert "-E, -I or -S" in warning
        assert "mosaic.start_run()" in warning
        assert "global_step=500, episodic_return=12.5" in warning
    shown = mosaic(workspace, "show", ids[0])
    assert "-E, -I or -S" in " ".join(shown.out.split())
    assert (
        mosaic(workspace, "--json", "show", ids[0]).json["history"][-2]["message"]
        == warnings(trainer.get_run(ids[0]))[0]
    )


def test_a_program_without_an_environment_and_without_metrics_is_named_in_its_history(
    trainer: TrainerClient, tmp_path: Path
) -> None:
    nothing = start_script(trainer, tmp_path / "nothing", "import math\nprint('iteration 5')\n")
    failed = start_script(trainer, tmp_path / "failed", "raise SystemExit(3)")
    lines = start_script(trainer, tmp_path / "lines", "print('global_step=5, episodic_return=2')")
    environment = start_script(trainer, tmp_path / "env", CARTPOLE.format(episodes=2))
    off = start_script(trainer, tmp_path / "off", "pass", probe={"console": False, "frames": False, "metrics": False})
    (warning,) = warnings(ended(trainer, nothing))
    assert "No environment and no metric was seen" in warning
    assert "mosaic.start_run()" in warning
    assert [warnings(ended(trainer, run_id)) for run_id in (failed, lines, environment, off)] == [[]] * 4


def test_a_script_for_an_older_gymnasium_is_advised_to_use_compat(trainer: TrainerClient, tmp_path: Path) -> None:
    write_script(tmp_path, LOOP, "loop.py")

    def start(*modes: str, compat: bool = False) -> str:
        return start_script(trainer, tmp_path, OLD_INFOS, *modes, probe={"compat": compat})

    warned = [start(), start("NEXT_STEP")]
    fine = [start("SAME_STEP"), start(compat=True)]
    for run_id in warned + fine:
        view = ended(trainer, run_id)
        run = RunFolder(view.run_dir)
        assert view.outcome == "succeeded", view.reason
        assert ("ended" in run.stdout_log("script").read_text()) is (run_id in fine)
        assert [event["code"] for event in events(run, "warning")] == ["needs_compat"] * (run_id in warned)
        assert all("loop.py reads final_info" in line and "--compat" in line for line in warnings(view)), warnings(view)
        assert len(warnings(view)) == (run_id in warned)


def test_every_file_that_a_script_saved_is_shown(trainer: TrainerClient, tmp_path: Path, workspace: Workspace) -> None:
    code = "import torch\nfor step in range(3):\n    torch.save({}, f'model-{step}.pt')\n"
    run_id = start_script(trainer, tmp_path / "w", code, python=sys.executable)
    assert ended(trainer, run_id).outcome == "succeeded"
    paths = [str(tmp_path / "w" / f"model-{step}.pt") for step in range(3)]
    assert mosaic(workspace, "--json", "show", run_id).json["saved_files"] == paths
    shown = mosaic(workspace, "show", run_id).out.replace("\n", "")
    assert all(path.rpartition("/")[2] in shown for path in paths)
