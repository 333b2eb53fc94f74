"""The explorer: trained models behind a local HTTP server, for a page and for programs.

`recmix explore RUN` starts it (``serve``); ``app`` has the routes, ``guard`` decides who may ask,
``wire`` reads and writes bodies, ``batches`` puts requests that wait together through the model at once,
``answers`` and ``explain`` compute. Needs the extra ``explore``.
"""
