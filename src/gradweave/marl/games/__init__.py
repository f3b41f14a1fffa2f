"""What is played: one view of every game, and its pictures."""
