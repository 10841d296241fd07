// MiniGrid: how to move is learned; a goal that is next to the agent is entered at once.
@enter   +!act : ahead(goal) <- move(forward).
@walk    +!act <- !choose.
@left[learn]    +!choose <- move(left).
@right[learn]   +!choose <- move(right).
@forward[learn] +!choose : not ahead(wall) & not ahead(lava) <- move(forward).
@pickup[learn]  +!choose : ahead(key) <- move(pickup).
@toggle[learn]  +!choose : door_ahead(_) <- move(toggle).
