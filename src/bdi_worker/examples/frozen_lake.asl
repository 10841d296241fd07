// FrozenLake without ice (is_slippery=false): walk to the goal, around the holes.
// Percepts: at(Row, Column), size(Rows, Columns), hole(Row, Column), goal(Row, Column).
// On ice, a step may go sideways: see frozen_lake_ice and grid_learn.
safe(R, C) :- size(Rows, Columns) & R >= 0 & C >= 0 & R < Rows & C < Columns & not hole(R, C).
new(R, C) :- safe(R, C) & not visited(R, C).

@down  +!act : at(R, C) & new(R + 1, C) <- +visited(R, C); move(down).
@right +!act : at(R, C) & new(R, C + 1) <- +visited(R, C); move(right).
@up    +!act : at(R, C) & new(R - 1, C) <- +visited(R, C); move(up).
@left  +!act : at(R, C) & new(R, C - 1) <- +visited(R, C); move(left).
@again +!act <- .abolish(visited(_, _)); !act.
