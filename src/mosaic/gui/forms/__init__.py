"""What forms are made of: what they hold and judge, without widgets; and the rows that show it."""
