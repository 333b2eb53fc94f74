"""Train and score many models (a grid of runs) that a TOML file describes.

A run trains and scores one model. A worker is a process that does runs. The driver is the process of
`recmix grid`, which starts workers. The store is the folder with one folder for each run. The results of
a grid form a table: its rows are methods, its columns are data sets with a model.

=================  ==========================================================================
`parts`            reads the parts of a TOML file: protocol, budget, columns, methods
`grid`             makes the list of runs of a TOML file, and their names
`store`            reads and writes the folder of runs: locks, states, failures
`job_queue`        decides which run is next
`worker`           a process that does a list of runs
`local_workers`    starts workers on this machine
`cluster`          does the runs on a Ray cluster
`time_runs`        measures the inference times of finished runs
`time_updates`     measures a few training updates of each kind of run before the runs start
`estimate`         estimates how long the remaining runs will take
`view`             prints the progress, the plan and the summary in the terminal
`stopping`         handles Ctrl-C, SIGTERM and the time limit
`driver`           `run_grid`, which combines these
=================  ==========================================================================

Importing these modules does not load torch.
"""
