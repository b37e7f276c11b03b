"""More tasks than memory: tasks stored on disk, written from tables, and fed to training in mini-batches."""
