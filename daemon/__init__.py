"""The process: config, sources, decoding, pipeline, checkpoints, results, server, client, command line."""
