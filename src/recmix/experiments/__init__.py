"""Grids of runs: a TOML file describes runs, workers do them, a store of folders holds the results.

=================  ==========================================================================
`parts`            the parts of a TOML file: protocol, budget, columns, methods
`grid`             from a file to its runs; the name of a run is a digest of its definition
`store`            the folder of runs: claims, states, failures
`job_queue`        which run is next: dependencies, retries, other drivers
`worker`           a process that does a list of runs
`local_workers`    such processes on this machine
`cluster`          the same on a Ray cluster
`time_runs`        inference times of finished runs
`estimate`         how long the remaining runs will take
`view`             what the terminal shows
`stopping`         Ctrl-C, SIGTERM and the time limit
`driver`           `run_grid`, which combines these
=================  ==========================================================================

Importing these modules does not load torch.
"""
