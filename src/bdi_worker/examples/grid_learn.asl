// FrozenLake and CliffWalking: which way to go is learned.
@left[learn]  +!act <- move(left).
@down[learn]  +!act <- move(down).
@right[learn] +!act <- move(right).
@up[learn]    +!act <- move(up).
