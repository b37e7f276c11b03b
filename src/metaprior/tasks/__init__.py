"""What a task is: arrays and labels as users pass them, checked, scaled and padded."""
