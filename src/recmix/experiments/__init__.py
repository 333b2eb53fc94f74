"""Grids of runs: a TOML file becomes runs, workers do them, a store of folders keeps what they found.

=============  =================================================================================
`grid`         from a TOML file to the runs it asks for, each with a name that follows from its content
`store`        the folder of runs: who works on which, what is done, what failed and why
`schedule`     which run is next: dependencies, retries, what another driver has taken
`worker`       one process that does a list of runs
`workers`      such processes on this machine
`cluster`      the same on a Ray cluster
`estimate`     how long the rest will take, from what has been measured
`view`         what a person sees of it
`driver`       `run_grid`, which puts them together
`results`      the scores of a grid, for tables
=============  =================================================================================

Nothing here loads torch when it is imported.
"""
