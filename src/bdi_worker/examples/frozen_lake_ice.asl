// FrozenLake's map 4x4 on ice: in each cell, the direction from which the agent is least likely to slip into a hole.
best(0, 0, left).  best(0, 1, up).    best(0, 2, up).   best(0, 3, up).
best(1, 0, left).                     best(1, 2, left).
best(2, 0, up).    best(2, 1, down).  best(2, 2, left).
                   best(3, 1, right). best(3, 2, down).

+!act : at(R, C) & best(R, C, Direction) <- move(Direction).
