"""Training: algorithms, environments, settings, presets, the dry run, and scripts of the user's."""

from mosaic.base.features import Command, Feature

FEATURE = Feature(
    commands=(
        Command(
            "demo", "Start here", 2, "cli_catalogue:demo", "Train an agent on CartPole, watch it learn, evaluate it."
        ),
        Command(
            "algorithms",
            "Start here",
            4,
            "cli_catalogue:algorithms",
            "List the algorithms, or explain one and its settings.",
        ),
        Command(
            "presets",
            "Start here",
            5,
            "cli_catalogue:presets",
            "List tuned settings, as measured, and your own presets.",
        ),
        Command(
            "envs",
            "Start here",
            6,
            "cli_catalogue:envs",
            "List the environments, or explain one: settings, actions, keys.",
        ),
        Command("train", "Train", 1, "cli:train", "Train an agent and watch it."),
        Command("run", "Train", 2, "cli:run", "Run any script of yours, unedited, with curves and live frames."),
        Command("check", "Train", 3, "cli:check", "Dry run: validate the config and show what would run."),
        Command("submit", "Train", 4, "cli:submit", "Submit a whole config from a JSON file."),
    ),
)
