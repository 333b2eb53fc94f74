"""From run folders and arrays to tables, figures and one page; nothing in here imports torch.

=====================  =========================================================================
``records``            a run as plain values, and the row and column of the tables it belongs to
``store``              reads a store of run folders
``statistics``         selection on validation, means over splits, exact paired tests
``published``          the figures the paper printed
``tables``             the paper's tables; ``forms`` and ``latex`` write them down
``figures``            figures from arrays; ``posterior_figure`` is the paper's Figure 1
``runs``               all runs of a store in one file; ``summary`` says what they amount to
``reach``              tables of that; ``frontier`` draws what accuracy costs
``page``               the report as one HTML file
``write``              what `recmix report` does
=====================  =========================================================================
"""
