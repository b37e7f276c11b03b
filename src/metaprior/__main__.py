"""The command `metaprior`, also as `python -m metaprior`."""

from metaprior.terminal import end_with_input, exit_on_signals, ignore_signals


def main() -> None:
    """Run the command line and end the process with its exit code."""
    exit_on_signals()  # before the rest is imported, which takes a while
    end_with_input()
    from metaprior.cli import run

    try:
        run()
    finally:
        ignore_signals()


if __name__ == "__main__":
    main()
