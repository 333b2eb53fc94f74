"""Make tables, figures and an HTML page from run folders. No module here imports torch.

A run is one training of one model. Its files are in a run folder. A store is a folder of run
folders. "The paper" is Kim and Pavlovic, Recursive Inference for Variational Autoencoders, 2020.

=====================  =========================================================================
``records``            a run as plain values, and its row and column in the tables
``read_store``         reads a store of run folders; ``store_files`` reads their files
``variants``           separate rows for runs of the same name with different training options
``statistics``         selection on validation data, means over splits; ``paired`` has the tests
``published``          the numbers that the paper printed
``tables``             the paper's tables, with our results; ``notes`` has the notes below them;
                       ``forms`` and ``latex`` write them as text
``figures``            figures from arrays; ``posterior_figure`` is the paper's Figure 1
``runs``               all runs of a store in one file
``summary``            the results of a store as plain rows; ``frontier`` draws them
``page``               the report as one HTML file
``write_report``       the command `recmix report`
=====================  =========================================================================
"""
