"""What a task is: arrays and labels as users bring them, checked, scaled and padded."""
