"""The explorer: a local HTTP server that offers trained models to a web page and to programs.

``recmix explore RUN`` starts the server for a trained run. The modules of this package:

- `serve` runs the server, and `app` has the routes.
- `connection` closes slow connections, `guard` checks who may send requests, and `memory` limits
  the bytes that requests and answers hold.
- `wire` reads requests and writes responses.
- `batcher` passes requests that wait at the same time through the model together.
- `answers` and `explain` compute the answers with the model.

The package needs ``pip install 'recmix[explore]'``.
"""
