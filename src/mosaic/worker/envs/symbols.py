"""The state of grid worlds and boards as symbols, a name for each cell, and of other games and their moves in words."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from mosaic.contracts.views import SymbolGrid

_LAKE = {b"S": "start", b"F": "ice", b"H": "hole", b"G": "goal"}
_DIRECTIONS = ("right", "down", "left", "up")
_SUITS = {"S": "spades", "H": "hearts", "D": "diamonds", "C": "clubs"}
_RANKS = {"A": "ace", "K": "king", "Q": "queen", "J": "jack", "T": "10"}


def frozen_lake(core: Any, _: Sequence[Any]) -> SymbolGrid:
    # A map of the user may have any letters; the environment treats unknown ones as ice.
    rows = [[_LAKE.get(bytes(cell), "ice") for cell in row] for row in core.desc]
    return _with_agent(rows, divmod(int(core.s), core.ncol))


def cliff_walking(core: Any, _: Sequence[Any]) -> SymbolGrid:
    height, width = core.shape
    rows = [["cliff" if core._cliff[row, column] else "floor" for column in range(width)] for row in range(height)]
    rows[height - 1][0], rows[height - 1][width - 1] = "start", "goal"
    return _with_agent(rows, divmod(int(core.s), width))


def taxi(core: Any, _: Sequence[Any]) -> SymbolGrid:
    taxi_row, taxi_column, passenger, destination = core.decode(int(core.s))
    rows = [["floor"] * 5 for _ in range(5)]
    for index, (row, column) in enumerate(core.locs):
        rows[row][column] = f"stop_{'RGYB'[index]}"
    marks = {tuple(core.locs[destination]): "destination"}
    if passenger < len(core.locs):
        marks[tuple(core.locs[passenger])] = "passenger"
    walls = [(row, column) for row in range(5) for column in range(4) if core.desc[row + 1][2 * column + 2] == b"|"]
    agent = "taxi_with_passenger" if passenger == len(core.locs) else "taxi"
    return _with_agent(rows, (taxi_row, taxi_column), agent, marks, walls)


def minigrid(core: Any, _: Sequence[Any]) -> SymbolGrid:
    grid = core.grid
    rows = []
    for row in range(grid.height):
        names = []
        for column in range(grid.width):
            cell = grid.get(column, row)
            if cell is None:
                names.append("floor")
            elif cell.type == "door":
                state = "open" if cell.is_open else "locked" if cell.is_locked else "closed"
                names.append(f"door_{cell.color}_{state}")
            else:
                names.append(cell.type if cell.type in ("wall", "lava") else f"{cell.type}_{cell.color}")
        rows.append(names)
    column, row = core.agent_pos
    symbols = _with_agent(rows, (int(row), int(column)), f"agent_{_DIRECTIONS[core.agent_dir]}")
    carrying = "" if core.carrying is None else f" Carrying: {core.carrying.color} {core.carrying.type}."
    return symbols.model_copy(update={"caption": f"{core.mission}.{carrying}"})


def tictactoe(core: Any, _: Sequence[Any]) -> SymbolGrid:
    marks = ("floor", "cross", "circle")
    return SymbolGrid(rows=tuple(tuple(marks[core.board.squares[3 * c + r]] for c in range(3)) for r in range(3)))


def connect_four(core: Any, _: Sequence[Any]) -> SymbolGrid:
    marks = ("floor", "red_piece", "yellow_piece")
    board = [int(value) for value in core.board]
    return SymbolGrid(rows=tuple(tuple(marks[board[7 * row + column]] for column in range(7)) for row in range(6)))


def _with_agent(
    rows: Sequence[Sequence[str]],
    place: tuple[int, int],
    agent: str = "agent",
    marks: dict[tuple[int, int], str] | None = None,
    walls: Sequence[tuple[int, int]] = (),
) -> SymbolGrid:
    """Append what is on a cell to its name: `ice+agent`."""
    tops = dict(marks or {})
    shown = [
        [
            "+".join([name, *filter(None, [tops.get((row, column))]), *([agent] if (row, column) == place else [])])
            for column, name in enumerate(names)
        ]
        for row, names in enumerate(rows)
    ]
    return SymbolGrid(rows=tuple(map(tuple, shown)), walls=tuple(walls))


# --- in words


def chess(core: Any, _: Any) -> str:
    rows = [f"{8 - number} {row}" for number, row in enumerate(str(core.board).splitlines())]
    return "\n".join([*rows, "  a b c d e f g h", f"FEN: {core.board.fen()}"])


def chess_moves(core: Any, turn: Any, names: Sequence[str]) -> Sequence[str]:
    """The same number is another move for each color, so only those that are legal now have names."""
    if turn is None:
        return names
    moves = importlib.import_module("pettingzoo.classic.chess.chess_utils")
    player, named = core.possible_agents.index(turn.agent), [""] * len(names)
    for action in turn.legal_actions or ():
        named[action] = str(moves.action_to_move(core.board, action, player))
    return named


def go(core: Any, _: Any) -> str:
    board = core._go.board
    moves = go_moves(core, None, range(board.size + 1))
    size = len(board)
    columns = f"   {' '.join(name[0] for name in moves[:size])}"
    rows = [f"{size - row:2} {' '.join('.XO'[stone] for stone in stones)}" for row, stones in enumerate(board)]
    last = f"Last move: {moves[_flat(core._go.recent[-1].move, size)]}" if core._go.recent else "No move yet."
    return "\n".join([*rows, columns, last])


def _flat(move: tuple[int, int] | None, size: int) -> int:
    return size * size if move is None else size * move[0] + move[1]


def go_moves(core: Any, _: Any, names: Sequence[Any]) -> Sequence[str]:
    """Columns are letters without I, rows count from the bottom."""
    size = core._go.board.shape[0] if hasattr(core, "_go") else core._N
    points = [f"{'ABCDEFGHJKLMNOPQRSTUVWXYZ'[place % size]}{size - place // size}" for place in range(size * size)]
    return [*points, "pass"]


def card_game(core: Any, turn: Any) -> str:
    """What an agent knows in a game of RLCard."""
    known = core.env.get_state(core._name_to_int(turn.agent))["raw_obs"]
    hand = [known["hand"]] if isinstance(known["hand"], str) else known["hand"]
    public = known.get("public_cards") or filter(None, [known.get("public_card")])
    lines = [
        f"Your hand: {', '.join(map(_card, hand))}",
        f"Cards that all see: {', '.join(map(_card, public)) or 'none yet'}",
    ]
    for title, name in (("Bets", "all_chips"), ("Left to bet", "stakes")):
        if name in known:
            chips = zip(core.possible_agents, known[name], strict=True)
            lines.append(f"{title}: {', '.join(f'{agent} {int(count)}' for agent, count in chips)}")
    return "\n".join(lines)


def _card(code: str) -> str:
    """`HK` is the king of hearts."""
    return f"{_RANKS.get(code[1], code[1])} of {_SUITS[code[0]]}"
