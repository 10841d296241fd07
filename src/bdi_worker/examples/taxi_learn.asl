// Taxi: the way is learned; the contexts say when to pick up and to drop off at all.
// Percepts: taxi(Row, Column), passenger(Place), destination(Place), stop(Place, Row, Column), wall(Row, Column, Direction).
// A place is red, green, yellow or blue; that of a passenger may be aboard.
@pickup[learn]  +!act : passenger(P) & taxi(R, C) & stop(P, R, C) <- move(pickup).
@dropoff[learn] +!act : passenger(aboard) & destination(D) & taxi(R, C) & stop(D, R, C) <- move(dropoff).
@south[learn]   +!act <- move(south).
@north[learn]   +!act <- move(north).
@east[learn]    +!act <- move(east).
@west[learn]    +!act <- move(west).
