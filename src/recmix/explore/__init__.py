"""The explorer: a local HTTP server that offers trained models to a web page and to programs.

``recmix explore RUN`` starts the server. It needs ``pip install 'recmix[explore]'``. The modules:

- `serve` runs the server, and `app` has the routes.
- `connection` closes slow connections, `guard` checks who may send requests, and `memory` limits
  the bytes that requests and answers hold.
- `wire` reads requests and writes responses.
- `batcher` passes requests that wait at the same time through the model together.
- `answers` and `explain` compute the answers with the model, `text_routes` and `texts` those about
  texts.
- `catalogue` holds the models, `routes` adds routes, `drawing` draws molecules, and `reference`
  describes the requests.
"""
