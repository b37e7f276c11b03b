"""How arguments are read: several columns after one option, and mistakes told in one line of text or JSON."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from metaprior.cli.console import NOTES, exit_error, exit_unexpected, print_note

UsageError: Any = typer.BadParameter.__mro__[1]  # of click, which later versions of typer contain
AS_JSON = "metaprior.as_json"  # the place of it in what a context remembers


class Command(TyperCommand):
    """A command with `--x week price` for `--x week --x price`, and usage errors like all others."""

    context_class = typer.Context  # what commands that ask for one declare; by default it is click's

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments."""
        NOTES.clear()
        _note_overridden(args, self.params)
        with _one_line(args, ctx):
            return super().parse_args(ctx, repeat_options(args, self.params))


class Group(TyperGroup):
    """The commands, with errors about their names like all others."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before a command."""
        ctx.meta[AS_JSON] = "--json" in args
        with _one_line(args, ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an exception that it does not know of is a mistake in metaprior."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, UsageError.__mro__[1]):  # how commands of typer end
            raise
        except Exception as error:
            raise exit_unexpected(error, ctx.meta[AS_JSON]) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command."""
        with _one_line(args, ctx):
            return super().resolve_command(ctx, args)


@contextmanager
def _one_line(args: Sequence[str], context: Any) -> Iterator[None]:
    as_json = "--json" in args  # it is not parsed yet
    try:
        yield
    except UsageError as error:
        command = "metaprior" if context.parent is None else f"metaprior {context.info_name}"
        message = " ".join(f"{error.format_message()}{_elsewhere(error, context)}".split())
        end = "" if message.endswith((".", "?")) else "."
        raise exit_error(f"{message}{end} See {command} --help.", as_json=as_json) from None


def _elsewhere(error: Any, context: Any) -> str:
    """Return, in words, which other command has an option that this one lacks."""
    name, group = getattr(error, "option_name", None), getattr(context.parent, "command", None)
    having = [each for each, command in getattr(group, "commands", {}).items() if name in _names_of(command)]
    if not having or context.info_name in having:
        return ""
    return f" (metaprior {' and '.join(having)} {'has' if len(having) == 1 else 'have'} it)"


def _names_of(command: Any) -> list[str]:
    return [name for each in command.params for name in (*each.opts, *each.secondary_opts)]


def repeat_options(args: Sequence[str], parameters: Sequence[Any]) -> list[str]:
    """Repeat an option that may be given several times before each further value that follows it.

    Values are taken from arguments that there would otherwise be too many of. A command that takes any number of paths
    keeps those that exist.
    """
    options = {name: each for each in parameters for name in each.opts if each.param_type_name == "option"}
    counts = [each.nargs for each in parameters if each.param_type_name == "argument"]
    places, follows = _positionals(args, options)
    surplus = len(places) - sum(counts)
    is_value: Callable[[str], bool] = lambda text: -1 not in counts or not (text == "-" or Path(text).exists())  # noqa: E731
    values = [i for i in places if follows.get(i) and is_value(args[i])]
    values = values if -1 in counts else values[: max(surplus, 0)]
    return [part for i, text in enumerate(args) for part in ([follows[i], text] if i in values else [text])]


def _note_overridden(args: Sequence[str], parameters: Sequence[Any]) -> None:
    """Say so if an option that has one value is given several: the last of them counts, as elsewhere."""
    once = [each for each in parameters if each.param_type_name == "option" and not each.multiple]
    named = {name: each for each in once for name in (*each.opts, *each.secondary_opts)}
    given: dict[Any, str] = {}
    for i, text in enumerate(args[: args.index("--")] if "--" in args else args):
        name, is_joined, value = text.partition("=")
        option = named.get(name)
        if option is None:
            continue
        words = name if option.is_flag else f"{name} {value if is_joined else ' '.join(args[i + 1 : i + 2])}"
        if given.setdefault(option.name, words) != words:
            print_note(f"{given[option.name]} does not count: {words} comes later.")
        given[option.name] = words


def typed(context: Any, leave_out: Sequence[str] = ()) -> list[str]:
    """Return the command with the options that were typed, but for those to leave out."""
    words = ["metaprior", str(context.info_name)]
    for parameter in context.command.params:
        value, source = context.params.get(parameter.name), context.get_parameter_source(parameter.name)
        if getattr(source, "name", "") != "COMMANDLINE" or parameter.name in leave_out:
            continue
        is_flag = isinstance(value, bool)
        names = parameter.secondary_opts if value is False else parameter.opts
        option = [names[0]] if parameter.param_type_name == "option" else []
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [*option, *([] if is_flag else [str(each)])]
    return words


def _positionals(args: Sequence[str], options: dict[str, Any]) -> tuple[list[int], dict[int, str]]:
    """Return the places of arguments that belong to no option, and the repeatable option that some of them follow."""
    places, follows, i, latest = [], {}, 0, ""
    while i < len(args) and args[i] != "--":
        name, given, _ = args[i].partition("=")
        if not args[i].startswith("-") or args[i] == "-":
            places.append(i)
            follows[i] = latest
        else:
            option = options.get(name)
            latest = name if option is not None and option.multiple else ""
            i += option is not None and not option.is_flag and not given
        i += 1
    return places + list(range(i + 1, len(args))), follows
