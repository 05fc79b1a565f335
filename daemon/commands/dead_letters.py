"""The commands about bad records that were set aside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..records.encodings import Encoding
from .flags import ConfigFile, JsonFlag, Misused, brokers, examples
from .settings import loaded_of

if TYPE_CHECKING:
    from ..records.stream import BadRecord

dead_letters_app = typer.Typer(
    help="Look at bad records that were set aside, and send them once more.",
    epilog=examples(
        "[cyan]graphtide dead-letters count dead-letters[/cyan]",
        "[cyan]graphtide dead-letters list dead-letters --reason bad-weight --limit 5[/cyan]",
        "[cyan]graphtide dead-letters replay dead-letters --encoding json --spool spool[/cyan]",
        "[cyan]graphtide dead-letters count --kafka broker1:9092 --topic edges-dead[/cyan]  of a topic",
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def _reason(text: str | None) -> str | None:
    """Of letters; one that looks mistyped would find none, and say nothing.

    Raises:
        BadParameter: there is no such reason, but one much like it.
    """
    if text is not None:
        import difflib

        from ..ingest.decode import REASONS

        if text not in REASONS and (close := difflib.get_close_matches(text, REASONS, n=1)):
            raise typer.BadParameter(f"there is no reason {text!r}; did you mean {close[0]}?")
    return text


def _columns(text: str | None) -> str | None:
    """
    Raises:
        BadParameter: they are no names of columns.
    """
    if text is not None:
        names = [name for part in text.split(",") if (name := part.strip())]  # one without a name is not read
        if not names or len(set(names)) < len(names):
            raise typer.BadParameter("must be names of columns, each once, with commas between")
    return text


FolderArgument = Annotated[
    Path | None,
    typer.Argument(metavar="DIR", help="The folder dead_letters.path, or a file in it.", exists=True),
]
ServersFlag = Annotated[
    str | None, typer.Option("--kafka", metavar="HOST:PORT", help="Read the topic there.", callback=brokers)
]
LetterTopicFlag = Annotated[str | None, typer.Option("--topic", help="The topic dead_letters.topic.")]
ReasonFlag = Annotated[
    str | None, typer.Option("--reason", help="Only letters with this reason.", callback=_reason)
]
SourceFlag = Annotated[
    str | None, typer.Option("--source", metavar="NAME", help="Only letters of topics or files that begin so.")
]


def _client(config: Path | None) -> Mapping[str, Any]:
    """How a daemon of these settings logs in to Kafka."""
    return {} if config is None else loaded_of(config, []).config.source.client_options()


def _letters(
    folder: Path | None,
    kafka: str | None,
    topic: str | None,
    config: Path | None,
    reason: str | None = None,
    source: str | None = None,
) -> Iterator[BadRecord]:
    if (folder is None) == (kafka is None) or (kafka is None) != (topic is None):
        raise Misused("give either DIR, or --kafka and --topic")
    from ..tools.dead_letters import Choice, from_folder, from_topic

    if folder is not None:
        found = from_folder(folder)
    else:
        assert kafka is not None and topic is not None
        found = from_topic(kafka, topic, _client(config))
    return Choice(reason, source).of(found)


@dead_letters_app.command(
    "list", epilog=examples("[cyan]graphtide dead-letters list dead-letters --reason bad-weight --json[/cyan]")
)
def list_(
    folder: FolderArgument = None,
    kafka: ServersFlag = None,
    topic: LetterTopicFlag = None,
    config: ConfigFile = None,
    reason: ReasonFlag = None,
    source: SourceFlag = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 50,
    json: JsonFlag = False,
) -> None:
    """List dead letters: where they stood, why they are bad, and how they begin; --json prints them whole."""
    from ..tools.dead_letters import list_some

    letters = _letters(folder, kafka, topic, config, reason, source)
    raise typer.Exit(list_some(letters, limit, as_json=json))


@dead_letters_app.command(epilog=examples("[cyan]graphtide dead-letters count dead-letters[/cyan]"))
def count(
    folder: FolderArgument = None,
    kafka: ServersFlag = None,
    topic: LetterTopicFlag = None,
    config: ConfigFile = None,
    reason: ReasonFlag = None,
    source: SourceFlag = None,
    json: JsonFlag = False,
) -> None:
    """Count dead letters by reason and by what they came from, each once however often it was delivered."""
    from ..tools.dead_letters import count_all

    raise typer.Exit(count_all(_letters(folder, kafka, topic, config, reason, source), as_json=json))


@dead_letters_app.command(
    epilog=examples("[cyan]graphtide dead-letters show edges/3/1207 dead-letters[/cyan]  as `list` names it")
)
def show(
    place: Annotated[str, typer.Argument(metavar="SOURCE", help="topic/partition/offset, or file/offset.")],
    folder: FolderArgument = None,
    kafka: ServersFlag = None,
    topic: LetterTopicFlag = None,
    config: ConfigFile = None,
    json: JsonFlag = False,
) -> None:
    """Show all of the letters of one place."""
    from ..tools.dead_letters import show_one

    raise typer.Exit(show_one(_letters(folder, kafka, topic, config), place, as_json=json))


@dead_letters_app.command(
    epilog=examples(
        "[cyan]graphtide dead-letters replay dead-letters --reason bad-weight --spool spool[/cyan]",
        "[cyan]graphtide dead-letters replay dead-letters --encoding json --to-kafka broker1:9092 --to-topic "
        "edges[/cyan]",
        "Letters stay where they are; which were sent is remembered. Updates come in the order of now.",
    )
)
def replay(
    folder: FolderArgument = None,
    kafka: ServersFlag = None,
    topic: LetterTopicFlag = None,
    config: ConfigFile = None,
    reason: ReasonFlag = None,
    source: SourceFlag = None,
    encoding: Annotated[
        Encoding | None,
        typer.Option(
            metavar="ENCODING",
            help="The true encoding, if a wrong one was the mistake: json, csv, registry, ... Default: their own.",
            show_default=False,
        ),
    ] = None,
    csv_header: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="The columns of CSV lines: src,dst,weight. Default: as in their header line.",
            callback=_columns,
        ),
    ] = None,
    spool: Annotated[Path | None, typer.Option("--spool", metavar="DIR", help="Write to this spool.")] = None,
    to_kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Send to these brokers.", callback=brokers)
    ] = None,
    to_topic: Annotated[str | None, typer.Option(help="The topic to send to.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Send letters that were sent before, too.")] = False,
    json: JsonFlag = False,
) -> None:
    """Send dead letters once more, to a spool or a topic, each one time; exit code 7 if some cannot be."""
    if (spool is None) == (to_kafka is None) or (to_kafka is None) != (to_topic is None):
        raise Misused("give either --spool DIR, or --to-kafka and --to-topic")
    letters_in = None if folder is None else folder if folder.is_dir() else folder.parent
    if spool is not None and letters_in is not None and spool.resolve() == letters_in.resolve():
        raise typer.BadParameter("the folder of the letters is no spool: no daemon reads it", param_hint="--spool")
    from ..tools import dead_letters
    from ..tools.replayed import FolderMarks, TopicMarks, Unsent

    letters = _letters(folder, kafka, topic, config, reason, source)
    if folder is not None:
        marks: FolderMarks | TopicMarks = FolderMarks(folder)
    else:
        assert kafka is not None and topic is not None
        marks = TopicMarks(kafka, topic, _client(config), reason, source)
    unsent = Unsent(letters, marks, again=again)
    files: list[Path] = []
    if spool is not None:
        done, files = dead_letters.replay_to_spool(unsent, spool, encoding, csv_header)
    else:
        assert to_kafka is not None and to_topic is not None
        from ..tools.destinations import KafkaDestination

        with closing(KafkaDestination(to_kafka, to_topic, client=_client(config))) as destination:
            done = dead_letters.replay_to_topic(unsent, destination, encoding, csv_header)
    unsent.sent()
    done.before = unsent.before
    where = f"topic {to_topic}" if spool is None else str(spool)
    raise typer.Exit(dead_letters.report(done, where, files, as_json=json))
