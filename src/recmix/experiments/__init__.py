"""Grids of runs: a TOML file becomes runs, workers do them, a store of folders keeps what they found.

=============  =================================================================================
`parts`        what a TOML file may say: protocol, budget, columns, methods
`grid`         from such a file to the runs it asks for, each with a name that follows from its content
`store`        the folder of runs: who works on which, what is done, what failed and why
`schedule`     which run is next: dependencies, retries, what another driver has taken
`worker`       one process that does a list of runs
`workers`      such processes on this machine
`cluster`      the same on a Ray cluster
`estimate`     how long the rest will take, from what has been measured
`view`         what a person sees of it
`stopping`     Ctrl-C, SIGTERM and the limit of hours
`driver`       `run_grid`, which puts them together
=============  =================================================================================

Nothing here loads torch when it is imported. What reads a store (`recmix.reports`) needs only its files.
"""
