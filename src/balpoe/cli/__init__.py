"""The command line; a file for each verb. Importing it costs nothing: `--help` does not wait for torch."""
