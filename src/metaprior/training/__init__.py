"""The training loop: its steps, early stopping, checkpoints, devices and progress."""
