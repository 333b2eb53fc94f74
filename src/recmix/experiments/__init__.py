"""Train and score many models, a grid of runs, as a TOML file describes them.

A run trains and scores one model. A worker is a process that does runs. The driver is the process of
`recmix grid`, which starts workers. The store is the folder with one folder for each run. The results of
a grid form a table: its rows are methods, its columns are data sets with a model.

=================  ==========================================================================
`parts`            reads the parts of a TOML file: protocol, budget, columns, methods
`grid`             from a file to its runs; the name of a run is a hash of its definition
`store`            the folder of runs: claims, states, failures
`job_queue`        which run is next: dependencies, retries, other drivers
`worker`           a process that does a list of runs
`local_workers`    starts workers on this machine
`cluster`          does the runs on a Ray cluster
`time_runs`        inference times of finished runs
`time_updates`     times of a few updates of each kind of run, before anything is started
`estimate`         how long the remaining runs will take
`view`             what the terminal shows
`stopping`         Ctrl-C, SIGTERM and the time limit
`driver`           `run_grid`, which combines these
=================  ==========================================================================

Importing these modules does not load torch.
"""
