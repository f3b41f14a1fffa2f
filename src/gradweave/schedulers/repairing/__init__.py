"""Repair after a fault: keeps what still works of an earlier plan and plans the rest again."""
