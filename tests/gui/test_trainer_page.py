"""The trainer page: what runs hold and use of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtWidgets import QLabel
from tests.helpers.daemons import running_daemon, scripted
from tests.helpers.gpu_machine import install_driver, install_gpus
from tests.helpers.gui import find, pump

from mosaic.contracts.folder import Workspace
from mosaic.contracts.views import GpuSample, HardwareSample, RunView, SlotHolder, SlotUsage
from mosaic.features.machines.window import BarPart, ResourceTable, SegmentBar, build_resource_rows
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.app import Application


def shown_texts(table: ResourceTable) -> list[str]:
    return [label.text() for label in table.findChildren(QLabel) if label.text() and not label.isHidden()]


def test_the_page_shows_who_holds_and_uses_which_gpu(
    program: Application, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2.5: the limits and who uses them are shown."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    install_gpus(tmp_path / "tools", 3, monkeypatch, tmp_path / "mps.log")
    install_driver(tmp_path / "tools", monkeypatch)
    with running_daemon(workspace, tmp_path / "plugins", "--max-runs", "9") as (_, trainer):

        def submit(group: str | None = None, **gpus: float) -> str:
            payload = {**scripted(steps=1_000_000, dt=0.02), "resources": {"gpus": gpus}}
            payload["metadata"]["group"] = group
            return str(trainer.submit(payload).run_id)[-6:]

        whole = submit(requested=1)
        half, quarter = submit(requested=0.5), submit(requested=0.25)
        seeds = [submit("seeds", device=2, runs_per_gpu=4) for _ in range(2)]
        pump(lambda: trainer.get_status().slots.busy == 5, "five at work")
        program.start()
        program.window.show_page("trainer")
        table = find(program.window, "trainer.resources", ResourceTable)
        pump(lambda: f"{half} 50%, {quarter} 25%" in shown_texts(table), "the holders")
        texts = shown_texts(table)
        assert whole in texts
        assert f"group seeds through MPS: {', '.join(seeds)}" in texts
        assert {"5 of 9", "Model 2", "20 % busy", "3.0 of 16.0 GB"} <= set(texts)
        fractions = [[part.fraction for part in bar.parts] for bar in table.findChildren(SegmentBar)]
        assert [1.0] in fractions
        assert fractions.count([0.5, 0.25]) == 1
        assert fractions.count([0.5, 0.5]) == 1
        assert find(program.window, "trainer.no_gpus", QLabel).isHidden()
        program.window.close()


@pytest.mark.usefixtures("daemon")
def test_a_machine_without_gpus_is_described_in_a_sentence(trainer: TrainerClient, program: Application) -> None:
    if trainer.get_status().slots.gpus:
        pytest.skip("This machine has a GPU.")
    program.start()
    program.window.show_page("trainer")
    sentence = find(program.window, "trainer.no_gpus", QLabel)
    pump(sentence.isVisible, "the sentence")
    assert sentence.text() == "There is no NVIDIA GPU that runs could use, so they train on the CPU."
    assert "0 of 4" in shown_texts(find(program.window, "trainer.resources", ResourceTable))


def test_cpus_that_are_held_differ_from_those_in_use() -> None:
    holders = (SlotHolder(run_id="R000001", cpus=3), SlotHolder(run_id="R000002"))
    views = {
        run_id: RunView.placeholder(run_id).model_copy(update={"hardware": HardwareSample(cpu_percent=150, rss_mb=512)})
        for run_id in ("R000001", "R000002")
    }
    _, cpus = build_resource_rows(SlotUsage(runs=2, busy=2, cpus=8, holders=holders), views.__getitem__)
    assert cpus.detail == "4 of 8 held"
    assert cpus.held.text == "000001 3, 000002 1"
    assert cpus.held.parts == (BarPart(3 / 8, "R000001"), BarPart(1 / 8, "R000002"))
    assert cpus.in_use is not None
    assert cpus.memory is not None
    assert (cpus.in_use.text, cpus.memory.text) == ("3.0 CPUs", "1.0 GB by runs")


def test_runs_of_a_group_take_turns_without_mps_and_a_driver_may_report_no_memory() -> None:
    holders = tuple(SlotHolder(run_id=f"R00000{n}", gpus=(0,), group="seeds") for n in (1, 2))
    slots = SlotUsage(gpus=1, gpu_names=("Model 0",), gpu_samples=(GpuSample(util_percent=7),), holders=holders)
    gpu = build_resource_rows(slots, RunView.placeholder)[-1]
    assert gpu.held.text == "group seeds in turns: 000001, 000002"
    assert gpu.memory is not None
    assert (gpu.memory.text, gpu.memory.parts) == ("0 MB", None)
