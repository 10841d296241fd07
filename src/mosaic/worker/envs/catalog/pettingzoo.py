"""PettingZoo: games for several agents, by turns or simultaneous."""

from __future__ import annotations

from mosaic.contracts.setting_field import SettingField
from mosaic.worker.envs.family import HEADLESS_VARIABLES, EnvEntry, EnvFamily, KeyBinding

_CLASSIC = (
    "tictactoe_v3", "connect_four_v3", "chess_v6", "go_v5", "hanabi_v5", "leduc_holdem_v4", "rps_v2",
    "texas_holdem_v4", "texas_holdem_no_limit_v6",
)  # fmt: skip
_BUTTERFLY = ("cooperative_pong_v6", "knights_archers_zombies_v11", "pistonball_v6")
_MPE = (
    "simple_v3", "simple_adversary_v3", "simple_crypto_v3", "simple_push_v3", "simple_reference_v3",
    "simple_speaker_listener_v4", "simple_spread_v3", "simple_tag_v3", "simple_world_comm_v3",
)  # fmt: skip
_ATARI = (
    "basketball_pong_v3", "boxing_v2", "combat_plane_v2", "combat_tank_v2", "double_dunk_v3", "entombed_competitive_v3",
    "entombed_cooperative_v3", "flag_capture_v2", "foozpong_v3", "ice_hockey_v2", "joust_v3", "mario_bros_v3",
    "maze_craze_v3", "othello_v3", "pong_v3", "quadrapong_v4", "space_invaders_v2", "space_war_v2", "surround_v2",
    "tennis_v3", "video_checkers_v4", "volleyball_pong_v3", "warlords_v3", "wizard_of_wor_v3",
)  # fmt: skip
_NUMBER_KEYS = tuple(KeyBinding((str(number),), f"column_{number}") for number in range(1, 8))
_CELLS = tuple(f"{row}_{column}" for column in ("left", "center", "right") for row in ("top", "middle", "bottom"))
_CELL_KEYS = tuple(KeyBinding((key,), cell) for key, cell in zip("741852963", _CELLS, strict=True))
"""As on a number pad."""
_CARDS = "mosaic.worker.envs.symbols:card_game"
_CARD_RULES = (
    "The winner gets all bets. Who folds loses what they have bet. The reward, at the end, is what you win or lose"
)
_BLINDS = ", in big blinds (2 chips)."
_CLASSIC_ENTRIES = (
    EnvEntry(
        pattern="tictactoe",
        about="Three in a row, on a board of 3 by 3.",
        actions=_CELLS,
        keys=_CELL_KEYS,
        rules=("player_1 sets crosses and begins, player_2 circles. Winning gives 1, losing -1.",),
        symbols="mosaic.worker.envs.symbols:tictactoe",
    ),
    EnvEntry(
        pattern="connect_four",
        about="Four in a row; a piece falls down its column.",
        actions=tuple(f"column_{number}" for number in range(1, 8)),
        keys=_NUMBER_KEYS,
        rules=(
            "Column 1 is the left one, row 0 the top. player_0 has red pieces and begins, player_1 yellow ones.",
            "Winning gives 1, losing -1.",
        ),
        symbols="mosaic.worker.envs.symbols:connect_four",
    ),
    EnvEntry(
        pattern="rps",
        about="Rock, paper, scissors; both choose before either is shown.",
        settings=(SettingField("max_cycles", "int", 15, "Rounds.", {"ge": 1}),),
        actions=("rock", "paper", "scissors"),
        rules=("The observation is the other's last choice: 0 rock, 1 paper, 2 scissors, 3 none. Winning gives 1.",),
        keys=(KeyBinding(("R",), "rock"), KeyBinding(("P",), "paper"), KeyBinding(("S",), "scissors")),
    ),
    EnvEntry(
        pattern="chess",
        about="Chess.",
        rules=(
            "Capital letters are the white pieces, of player_0; white is at the bottom. Moves are in UCI notation, "
            "such as e2e4 or e7e8q. Winning gives 1, losing -1.",
        ),
        words="mosaic.worker.envs.symbols:chess",
        moves="mosaic.worker.envs.symbols:chess_moves",
    ),
    EnvEntry(
        pattern="go_",
        about="Go: surround more of the board than the other.",
        settings=(
            SettingField("board_size", "int", 19, "Lines of the board.", {"ge": 2, "le": 25}),
            SettingField("komi", "float", 7.5, "What white gets for moving second."),
        ),
        rules=(
            "black_0 has X and begins, white_0 has O. A move is the column and the row of a free point, such as D4, or "
            "`pass`; two passes end the game. Stones without free neighbours are taken. Points are the stones on the "
            "board and the free points that only they surround. White gets {komi:g} points more.",
            "Winning gives 1, losing -1.",
        ),
        words="mosaic.worker.envs.symbols:go",
        moves="mosaic.worker.envs.symbols:go_moves",
    ),
    EnvEntry(
        pattern="texas_holdem_no_limit",
        about="Poker: Texas hold'em without limit, for two.",
        actions=("fold", "check_call", "raise_half_pot", "raise_full_pot", "all_in"),
        rules=(f"{_CARD_RULES}, in chips. The blinds are 1 and 2.",),
        words=_CARDS,
    ),
    EnvEntry(
        pattern="texas_holdem",
        about="Poker: Texas hold'em with fixed raises, for two.",
        actions=("call", "raise", "fold", "check"),
        rules=(f"{_CARD_RULES}{_BLINDS} A raise is 2 chips in the first two rounds, then 4, at most 4 times a round.",),
        words=_CARDS,
    ),
    EnvEntry(
        pattern="leduc_holdem",
        about="Poker with six cards (two each of jack, queen and king), one each and one that both see.",
        actions=("call", "raise", "fold", "check"),
        rules=(
            f"{_CARD_RULES}{_BLINDS} A raise is 2 chips in the first round, then 4, at most 2 times a round.",
            "A pair with the card that both see wins, else the higher card; suits do not matter.",
        ),
        words=_CARDS,
    ),
    EnvEntry(pattern="", about="A board or card game; actions are numbered."),
)
_BUTTERFLY_ENTRIES = (
    EnvEntry(
        pattern="cooperative_pong",
        about="Two paddles keep the ball in play.",
        settings=(SettingField("max_cycles", "int", 900, "Steps of an episode.", {"ge": 1}),),
        actions=("idle", "up", "down"),
        keys=(KeyBinding(("Up",), "up"), KeyBinding(("Down",), "down")),
        idle_action="idle",
        rate_hz=15,
    ),
    EnvEntry(pattern="", about="All agents act at the same time.", rate_hz=15),
)
_MPE_ENTRIES = (
    EnvEntry(
        pattern="simple_spread",
        about="Agents cover landmarks without colliding.",
        settings=(
            SettingField("N", "int", 3, "Agents, and landmarks.", {"ge": 1}),
            SettingField("max_cycles", "int", 25, "Steps of an episode.", {"ge": 1}),
        ),
        actions=("idle", "left", "right", "down", "up"),
        keys=tuple(KeyBinding((key.title(),), key) for key in ("left", "right", "down", "up")),
        idle_action="idle",
        rate_hz=10,
    ),
    EnvEntry(pattern="", about="Particles that move, collide and signal; all agents act at the same time.", rate_hz=10),
)
CLASSIC = EnvFamily(
    name="pettingzoo_classic",
    title="PettingZoo classic",
    about="Board and card games for several agents, by turns.",
    sample_env_id="pettingzoo/tictactoe_v3",
    extra="pettingzoo",
    packages=("pettingzoo",),
    pattern=rf"pettingzoo[/:.](classic[/:.])?({'|'.join(_CLASSIC)})$",
    known_ids=tuple(f"pettingzoo/{name}" for name in _CLASSIC),
    environment_variables=HEADLESS_VARIABLES,
    game_packages={
        "chess": ("chess", "chess"),
        "hanabi": ("pyspiel", "'shimmy[openspiel]'"),
        "holdem": ("rlcard", "rlcard"),
    },
    entries=_CLASSIC_ENTRIES,
    has_several_agents=True,
    has_turns=True,
)
MPE = EnvFamily(
    name="pettingzoo_mpe",
    title="PettingZoo particles",
    about="Small worlds of particles in which several agents cooperate or compete.",
    sample_env_id="pettingzoo/simple_spread_v3",
    extra="pettingzoo",
    packages=("pettingzoo", "mpe2"),
    pattern=rf"pettingzoo[/:.](mpe[/:.])?({'|'.join(_MPE)})$",
    known_ids=tuple(f"pettingzoo/{name}" for name in _MPE),
    environment_variables=HEADLESS_VARIABLES,
    entries=_MPE_ENTRIES,
    has_several_agents=True,
)
ATARI = EnvFamily(
    name="pettingzoo_atari",
    title="PettingZoo Atari",
    about="Atari games for several players.",
    sample_env_id="pettingzoo/pong_v3",
    extra="ma_atari",
    packages=("pettingzoo", "multi_agent_ale_py"),
    pattern=rf"pettingzoo[/:.](atari[/:.])?({'|'.join(_ATARI)})$",
    known_ids=tuple(f"pettingzoo/{name}" for name in _ATARI),
    environment_variables=HEADLESS_VARIABLES,
    entries=(EnvEntry(pattern="", about="An Atari game for several players.", rate_hz=30),),
    has_several_agents=True,
)
BUTTERFLY = EnvFamily(
    name="pettingzoo_butterfly",
    title="PettingZoo butterfly",
    about="Arcade games in which several agents act at the same time.",
    sample_env_id="pettingzoo/cooperative_pong_v6",
    extra="pettingzoo",
    packages=("pettingzoo", "pygame"),
    pattern=r"pettingzoo[/:.]",
    known_ids=tuple(f"pettingzoo/{name}" for name in _BUTTERFLY),
    environment_variables=HEADLESS_VARIABLES,
    game_packages={"pistonball": ("pymunk", "pymunk")},
    entries=_BUTTERFLY_ENTRIES,
    has_several_agents=True,
)
