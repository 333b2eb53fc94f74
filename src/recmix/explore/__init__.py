"""The explorer: trained models behind a local HTTP server, for a web page and for programs.

``recmix explore RUN`` starts it. `serve` runs the server, `app` has the routes, `guard` checks who may
send requests, `wire` reads requests and writes responses, `batcher` passes waiting requests through the
model together, `answers` and `explain` compute. It needs the extra ``explore``.
"""
