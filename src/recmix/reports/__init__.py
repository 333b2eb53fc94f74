"""Tables, figures and a page from run folders. Nothing here imports torch.

=====================  =========================================================================
``records``            a run as plain values, and its row and column in the tables
``read_store``         reads a store of run folders; ``store_files`` reads their files
``variants``           separate rows for runs of the same name with different training options
``statistics``         selection on validation data, means over splits; ``paired`` tests
``published``          the numbers that the paper printed
``tables``             the paper's tables; ``notes`` below them; ``forms`` and ``latex`` write them
``figures``            figures from arrays; ``posterior_figure`` is the paper's Figure 1
``runs``               all runs of a store in one file
``summary``            the results of a store; ``reach`` makes tables of them, ``frontier`` a figure
``page``               the report as one HTML file; ``template`` loads its templates
``write_report``       `recmix report`
=====================  =========================================================================
"""
