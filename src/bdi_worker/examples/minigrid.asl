// MiniGrid's rooms without doors: walk to the goal once it is seen, else along the walls.
// Percepts: sees(Type, Color, Forward, Right), ahead(Type), beside(left or right, Type), direction(D), carrying(Type, Color),
// door_ahead(State), mission(Text). Forward and Right are cells from the agent; Right is negative on its left.
blocked :- ahead(wall) | ahead(lava).

@forward +!act : sees(goal, _, F, _) & F > 0 & not blocked <- move(forward).
@right   +!act : sees(goal, _, _, R) & R > 0 <- move(right).
@left    +!act : sees(goal, _, _, R) & R < 0 <- move(left).
@turn    +!act : blocked & beside(right, wall) <- move(left).
@corner  +!act : blocked <- move(right).
@search  +!act <- move(forward).
