"""The commands, by what they are about. Each loads what it needs when it runs, so that --help answers at once."""
