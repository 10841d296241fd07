"""Play: people, policies, scripts, language models and BDI agents act in environments; duels between them."""

from mosaic.base.features import Command, Feature

FEATURE = Feature(
    commands=(
        Command("play", "Play", 1, "cli:play", "Let a policy, a script or chance act in an environment."),
        Command("duel", "Play", 2, "cli:duel", "Compare actors in an environment under the same seeds."),
        Command("actors", "Play", 3, "cli:actors", "List who can act: kinds of actors, and what each needs."),
        Command("llm", "Play", 4, "cli:llm", "Language models as actors: store the API key."),
        Command("replay", "Play", 5, "cli:replay", "Simulate recorded episodes again and compare every reward."),
    ),
)
